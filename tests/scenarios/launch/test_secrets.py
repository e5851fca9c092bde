"""The key of a job in Spark, and what it is made of, show nowhere: logs, event log, REST, web pages, files, /proc."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.launch import clusters

# Every Python that starts with this on its path notes the random bytes that it draws.
NOTE_RANDOM_BYTES = """
import os, secrets
draw = secrets.token_bytes
def token_bytes(count=None):
    drawn = draw(count)
    with open(os.environ["NOTED"], "a") as file:
        file.write(drawn.hex() + "\\n")
    return drawn
secrets.token_bytes = token_bytes
"""
# Spark logs much; its classes that schedule tasks, keep blocks and send commands to Python log everything.
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
logger.all.name = org.apache.spark
logger.all.level = debug
"""
# At DEBUG, Spark Connect's server logs each request as a whole, with the user's function and the token. At INFO it does
# so when a session ends before its client has released the last result; the token is of no use by then.
LOG4J += "logger.requests.name = org.apache.spark.sql.connect\nlogger.requests.level = info\n"
LOG4J += "logger.removals.name = org.apache.spark.sql.connect.service.SparkConnectExecutionManager\n"
LOG4J += "logger.removals.level = warn\n"
LOG4J += "".join(
    f"logger.{name}.name = org.apache.spark.{name}\nlogger.{name}.level = trace\n"
    for name in ("scheduler", "storage", "executor", "broadcast")
)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "elastic", "connect"])
def test_the_key_of_a_spark_job_and_what_it_is_made_of_show_nowhere(kind: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("path", "events", "scratch", "run", "seen")}
    for folder in folders.values():
        folder.mkdir()
    (folders["path"] / "sitecustomize.py").write_text(NOTE_RANDOM_BYTES)
    (tmp_path / "log4j2.properties").write_text(LOG4J)
    noted = tmp_path / "noted"
    noted.touch()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={tmp_path}/log4j2.properties "
        f"-Djava.io.tmpdir={folders['scratch']}",
        "spark.eventLog.enabled": "true",
        "spark.scheduler.listenerbus.logSlowEvent.threshold": "0ms",  # on a slow machine some are logged by default
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folders["events"].as_uri(),
        "spark.local.dir": str(folders["scratch"]),
    }
    env = {
        "NOTED": str(noted),
        "PYTHONPATH": f"{clusters.ROOT}:{folders['path']}",
        "TMPDIR": str(folders["scratch"]),
        "SPARK_CONNECT_LOG_LEVEL": "debug",
        "HOROVOD_LOG_LEVEL": "trace",
    }
    looks = [str(folders["seen"]), str(folders["scratch"])]
    looks.append("elastic" if kind == "elastic" else "barrier")
    if kind != "connect":
        arguments = [f"{name}={value}" for name, value in settings.items()]
        with clusters.driver("secretive.py", *looks, "local[2]", *arguments, folder=folders["run"], env=env) as driver:
            results = driver.wait(250)
            logs = {"log": driver.output()}
    else:
        with clusters.connect_server(folders["run"], settings=settings, env=env) as address:
            server = folders["run"] / "connect.log"
            env |= {"UI": clusters.web_address(server)}
            with clusters.driver("secretive.py", *looks, address, folder=folders["run"], env=env) as driver:
                results = driver.wait(250)
                logs = {"log": driver.output()}
        logs["server's log"] = server.read_text(errors="replace")

    drawn = noted.read_text().split()
    secrets: dict[str, bytes] = {}
    shares = 1 if kind == "elastic" else 2  # the driver's, for a round; or the tasks'
    for size in ("small", "large") if kind == "elastic" else ("small", "large", "fed"):
        result: Any = results[size]
        assert result["places"] == []
        parts = _secrets(result["yek"], drawn, shares)
        secrets |= {f"{what} of the {size} job": secret for what, secret in parts}
    assert any("DEBUG" in text for text in logs.values()) and any("TRACE" in text for text in logs.values())
    events = {str(path): path.read_text(errors="replace") for path in folders["events"].rglob("*") if path.is_file()}
    assert "SparkListenerTaskEnd" in "".join(events.values())
    pages = {path.name for path in folders["seen"].rglob("*")}
    assert {"rest environment", "rest jobs", "rest stages", "rest executors", "rest sql", "jobs ", "SQL "} <= pages
    assert any(name.startswith("broadcast") or "blockmgr" in name for name in pages) or kind == "connect"
    texts = {name: text.encode() for name, text in {**logs, **events}.items()}
    for root in ("scratch", "seen", "run"):
        texts |= {str(path): path.read_bytes() for path in folders[root].rglob("*") if path.is_file()}
    shown = sorted(
        f"{what} as {form} in {where}, in {_record(text[: text.find(looks_like)])!r}"
        for what, secret in secrets.items()
        for form, looks_like in _forms(secret)
        for where, text in texts.items()
        if looks_like in text
    )
    assert not shown, "\n".join(shown)


def _secrets(yek: str, drawn: list[str], shares: int) -> Iterator[tuple[str, bytes]]:
    """The key, and those of all random bytes that were drawn which it is made of."""
    jobs = [text for text in drawn if len(text) == 16]
    long = [text for text in drawn if len(text) == 64]
    made_of = [
        parts
        for parts in itertools.permutations(long, shares + 1)
        if any(hashlib.sha256(bytes.fromhex("".join(parts)) + job.encode()).hexdigest() == yek[::-1] for job in jobs)
    ]
    assert len(made_of) == 1, f"the key is made of {shares} shares that were drawn, and the driver's token"
    names = ("the key", *(f"share {number}" for number in range(shares)), "the channel's token")
    yield from zip(names, map(bytes.fromhex, (yek[::-1], *made_of[0])), strict=True)


def _record(text: bytes) -> bytes:
    """How the last record of a log begins, and how the text ends."""
    start = max(text.rfind(b"\n%s " % level) for level in (b"TRACE", b"DEBUG", b"INFO", b"WARN", b"ERROR"))
    return text[start + 1 :][:500] + b" ... " + text[-100:]


def _forms(secret: bytes) -> list[tuple[str, bytes]]:
    """The forms of a secret in a text or a file, at any position in a longer text."""
    forms = [("bytes", secret), ("hex", secret.hex().encode()), ("HEX", secret.hex().upper().encode())]
    forms += [("repr", repr(secret)[2:-1].encode()), ("numbers", str(list(secret))[1:-1].encode())]
    signed = [byte - 256 if byte > 127 else byte for byte in secret]
    forms += [("Java's numbers", str(signed)[1:-1].encode())]
    escapes = {byte: f"\\{chr(byte)}" for byte in b"\\\"'"} | {10: r"\n", 13: r"\r", 9: r"\t"}
    java_escapes = escapes | {7: r"\a", 8: r"\b", 11: r"\v", 12: r"\f"}
    for whose, table in (("Python protobuf's", escapes), ("Java protobuf's", java_escapes)):
        text = "".join(table.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in secret)
        forms += [(f"{whose} text", text.encode())]
        forms += [(f"{whose} text in JSON", text.replace("\\", "\\\\").encode())]
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret)
        whole = encoded[4 if before else 0 : (before + len(secret)) // 3 * 4]
        forms += [("base64", whole), ("base64 for addresses", whole.replace(b"+", b"-").replace(b"/", b"_"))]
    return forms


def test_the_forms_find_a_secret_wherever_it_stands() -> None:
    secret = os.urandom(32)
    for before in range(4):
        text = base64.b64encode(b"x" * before + secret + b"more")
        assert any(looks_like in text for _, looks_like in _forms(secret))
    protobuf = pytest.importorskip("google.protobuf.text_encoding")
    assert ("Python protobuf's text", protobuf.CEscape(secret, False).encode()) in _forms(secret)
