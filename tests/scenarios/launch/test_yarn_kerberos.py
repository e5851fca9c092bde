"""A program on YARN with Kerberos: in client mode by a ticket, in cluster mode by a keytab; ranks have tokens only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("hdfs_native")

from tests.hadoop_daemons import start_hadoop
from tests.kerberos_daemons import KerberosHadoop, skip_without_kerberos
from tests.launch.yarn import PARTS, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosHadoop]:
    skip_without_kerberos()
    folder = tmp_path_factory.mktemp("kerberos") / "daemons"
    with start_hadoop(folder, yarn=True, kind=KerberosHadoop) as running:
        secure = cast(KerberosHadoop, running)
        for arguments in ("-mkdir -p /user/alice /parts", "-chown alice /user/alice /parts", "-chmod 700 /parts"):
            secure.run_as("hdfs", "org.apache.hadoop.fs.FsShell", *arguments.split())
        yield secure


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_all_parts(hadoop: KerberosHadoop, tmp_path: Path, mode: str) -> None:
    java = " ".join(hadoop.java_options)
    settings = {f"spark.{part}.extraJavaOptions": java for part in ("driver", "executor", "yarn.am")}
    for part in ("executorEnv", "yarn.appMasterEnv"):
        settings |= {
            f"spark.{part}.KRB5_CONFIG": hadoop.environ()["KRB5_CONFIG"],
            f"spark.{part}.KRB5CCNAME": "FILE:/none",
        }
    env = {"JAVA_TOOL_OPTIONS": java}
    if mode == "cluster":  # without a ticket where it is submitted, too
        env["KRB5CCNAME"] = "FILE:/none"
        settings |= {"spark.kerberos.principal": "alice", "spark.kerberos.keytab": hadoop.keytab("alice")}
    result = tmp_path / "result.json"
    arguments = (f"/parts/{time.time_ns()}", str(result), *PARTS)
    with submit(hadoop, tmp_path, mode, *arguments, settings=settings, env=env) as driver:
        assert driver.process.wait(800) == 0, driver.output()[-6000:]
    assert json.loads(result.read_text()) == PARTS
