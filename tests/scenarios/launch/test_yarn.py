"""Programs on YARN and HDFS, of Hadoop's own daemons, as spark-submit starts them: both modes, and what they lose."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("hdfs_native")

from tests.hadoop_daemons import Hadoop, start_hadoop
from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTS = {
    "run": [0, "of --py-files", "container"],
    "rows": 200,
    "fit": [3, True, 200],
    "loop": [0, 10],
    "petastorm": 200,
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
}


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with start_hadoop(tmp_path_factory.mktemp("hadoop") / "daemons", yarn=True) as running:
        yield running


@contextlib.contextmanager
def submit(
    hadoop: Hadoop, tmp_path: Path, mode: str, *arguments: str, settings: Mapping[str, str] | None = None
) -> Iterator[clusters.Driver]:
    """Run the program on YARN until the end of the block; its result is in the file ``result.json``."""
    archive = tmp_path / "of_files.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("of_files.py", "def text():\n    return 'of --py-files'\n")
    java = hadoop.environ()["JAVA_HOME"]
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        # In cluster mode the driver's Python, with torch, is in it.
        "spark.driver.memoryOverhead": "2g",
        "spark.yarn.jars": f"local:{clusters.SPARK_HOME}/jars/*",
        "spark.yarn.appMasterEnv.JAVA_HOME": java,
        "spark.yarn.appMasterEnv.PYTHONPATH": str(clusters.ROOT),
        "spark.executorEnv.JAVA_HOME": java,
        "spark.executorEnv.PYTHONPATH": str(clusters.ROOT),
        "spark.pyspark.python": sys.executable,
        "spark.yarn.am.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        **(settings or {}),
    }
    command = [f"{clusters.SPARK_HOME}/bin/spark-submit", "--master", "yarn", "--deploy-mode", mode]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command += ["--py-files", str(archive), str(clusters.DRIVERS / "on_yarn.py"), *arguments]
    log = tmp_path / f"submit-{mode}-{time.monotonic_ns()}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
            env=clusters.environment(**hadoop.environ()),
            cwd=tmp_path,
        )
    try:
        yield clusters.Driver(process, log)
    finally:
        clusters.kill_group(process)


def list_applications(hadoop: Hadoop) -> list[dict[str, Any]]:
    """Return what YARN's list has of each application, the last one first."""
    with urllib.request.urlopen(f"{hadoop.resource_manager}/ws/v1/cluster/apps", timeout=30) as answer:
        applications = (json.load(answer).get("apps") or {}).get("app", [])
    return sorted(applications, key=lambda application: application["startedTime"], reverse=True)


def read_logs(hadoop: Hadoop, application: str) -> str:
    """Return the aggregated logs of an application's containers, once they are there."""
    deadline = time.monotonic() + 120
    while True:
        main = "org.apache.hadoop.yarn.client.cli.LogsCLI"
        text = hadoop.run_class(main, "-applicationId", application).stdout
        if "End of LogType:stdout" in text or time.monotonic() > deadline:
            return text
        time.sleep(2)


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_all_parts(hadoop: Hadoop, tmp_path: Path, mode: str) -> None:
    """Client mode with executors that come when tasks wait for them, cluster mode with two from the beginning."""
    result = tmp_path / "result.json"
    settings = DYNAMIC if mode == "client" else None
    with submit(hadoop, tmp_path, mode, f"/parts/{time.time_ns()}", str(result), *PARTS, settings=settings) as driver:
        assert driver.process.wait(800) == 0, driver.output()[-6000:]
    assert json.loads(result.read_text()) == PARTS
    application = list_applications(hadoop)[0]
    # In cluster mode YARN has got the name before the program runs.
    assert application["name"] == ("rows of a cluster" if mode == "client" else "on_yarn.py")
    assert application["finalStatus"] == "SUCCEEDED"
    logs = read_logs(hadoop, application["id"])
    assert "a line of rank 0" in (logs if mode == "cluster" else driver.output())


def test_the_application_master_is_killed(hadoop: Hadoop, tmp_path: Path) -> None:
    """YARN starts the program again, and its run continues after the last checkpoint."""
    result = tmp_path / "result.json"
    arguments = (f"/killed/{time.time_ns()}", str(result), "rows", "outlive")
    with submit(hadoop, tmp_path, "cluster", *arguments, settings={"spark.yarn.maxAppAttempts": "2"}) as driver:
        assert driver.process.wait(800) == 0, driver.output()[-6000:]
    assert json.loads(result.read_text()) == {"rows": 200, "outlive": 200}
    assert re.search(
        r"run 'outlive' continues after epoch [1-9]", read_logs(hadoop, list_applications(hadoop)[0]["id"])
    )
