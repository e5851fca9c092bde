"""The key of a job in Spark, and the shares that it is made of, show nowhere: logs, event log, scratch, /proc."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

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


@pytest.mark.timeout(240)
def test_the_key_of_a_spark_job_shows_nowhere(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("path", "events", "scratch", "run")}
    for folder in folders.values():
        folder.mkdir()
    (folders["path"] / "sitecustomize.py").write_text(NOTE_RANDOM_BYTES)
    noted = tmp_path / "noted"
    noted.touch()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "DEBUG",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folders["events"].as_uri(),
        "spark.local.dir": str(folders["scratch"]),
    }
    arguments = [f"{name}={value}" for name, value in settings.items()]
    env = {"NOTED": str(noted), "PYTHONPATH": f"{clusters.ROOT}:{folders['path']}"}
    with clusters.driver("secretive.py", "local[2]", *arguments, folder=folders["run"], env=env) as driver:
        found = driver.wait(200)
        log = driver.output()
    assert found["places"] == []
    key = str(found["yek"])[::-1]
    drawn = noted.read_text().split()
    jobs = [line for line in drawn if len(line) == 16]
    long = [line for line in drawn if len(line) == 64]
    drawn_for_key = [
        drawn for drawn in itertools.permutations(long, 3) if any(_key("".join(drawn), job) == key for job in jobs)
    ]
    assert len(drawn_for_key) == 1, "the key is made of two shares that were drawn in the tasks, and the driver's token"
    shares = drawn_for_key[0][:2]
    events = "".join(path.read_text(errors="replace") for path in folders["events"].rglob("*") if path.is_file())
    assert "SparkListenerTaskEnd" in events and "DEBUG" in log
    texts = {"log": log, "event log": events}
    texts |= {str(p): p.read_bytes().decode("latin-1") for p in folders["scratch"].rglob("*") if p.is_file()}
    for secret in (key, *shares):
        for where, text in texts.items():
            assert secret not in text, where
            assert bytes.fromhex(secret).decode("latin-1") not in text, where


def _key(drawn: str, job: str) -> str:
    return hashlib.sha256(bytes.fromhex(drawn) + job.encode()).hexdigest()
