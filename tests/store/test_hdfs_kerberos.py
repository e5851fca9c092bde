"""HDFS with Kerberos and encryption: by a ticket, by a token as YARN's containers have it, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("hdfs_native")
pytest.importorskip("pyspark")

from tests.hadoop_daemons import start_hadoop
from tests.kerberos_daemons import KerberosHadoop, skip_without_kerberos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_PROGRAM = """
import sys
from spark_estimator.store import HDFSStore
store = HDFSStore(sys.argv[1])
for action in (lambda: store.write("/alice/file", bytes(10 << 20)), lambda: len(store.read("/alice/file"))):
    try: print("done", action())
    except Exception as error: print(type(error).__name__, error)
"""
_DONE = f"done None\ndone {10 << 20}\n"
_FETCHER = "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher"
_REMEDY = r"\. Run kinit, or spark-submit with --principal and --keytab\.\n"


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosHadoop]:
    skip_without_kerberos()
    with start_hadoop(tmp_path_factory.mktemp("kerberos") / "daemons", kind=KerberosHadoop) as running:
        secure = cast(KerberosHadoop, running)
        for arguments in ("-mkdir /alice", "-chown alice /alice", "-chmod 700 /alice"):
            secure.run_as("hdfs", "org.apache.hadoop.fs.FsShell", *arguments.split())
        yield secure


def try_with(hadoop: KerberosHadoop, ticket: str, tokens: str = "") -> str:
    """Return the results of a program that writes and reads a file of alice's, with this ticket and file of tokens."""
    env = {**os.environ, **hadoop.environ(), "KRB5CCNAME": ticket, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, f"{hadoop.uri}/alice"],
        env={**env, **({"HADOOP_TOKEN_FILE_LOCATION": tokens} if tokens else {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_tickets(hadoop: KerberosHadoop) -> None:
    assert try_with(hadoop, hadoop.cache("alice")) == _DONE
    path = rf"{hadoop.uri}/alice\S*"
    denied = rf"PermissionError {path}: AccessControlException: Permission denied: user=bob, access=\S+, inode=\S+\n"
    assert re.fullmatch(2 * denied, try_with(hadoop, hadoop.cache("bob")))
    absent = rf"PermissionError {path}: No credentials .*default cache: FILE:/none\){_REMEDY}"
    assert re.fullmatch(2 * absent, try_with(hadoop, "FILE:/none"))
    hadoop.log_in("bob", "-l", "1s")
    time.sleep(2)
    expired = rf"PermissionError {path}: .*expired.*{_REMEDY}"
    assert re.fullmatch(2 * expired, try_with(hadoop, hadoop.cache("bob")), re.IGNORECASE)


def test_tokens(hadoop: KerberosHadoop, tmp_path: Path) -> None:
    """Hadoop writes the name node's IP address into a token, and the URL has its name."""
    tokens = str(tmp_path / "tokens")
    hadoop.run_as("alice", _FETCHER, "--renewer", "hdfs", tokens)
    assert b"127.0.0.1:" in Path(tokens).read_bytes() and "localhost" in hadoop.uri
    assert try_with(hadoop, "FILE:/none", tokens) == _DONE
    hadoop.run_as("alice", _FETCHER, "--cancel", tokens)
    cancelled = rf"PermissionError {hadoop.uri}/alice\S*: .*{_REMEDY}"
    assert re.fullmatch(2 * cancelled, try_with(hadoop, "FILE:/none", tokens))
