"""Programs on YARN and HDFS, of Hadoop's own daemons, as spark-submit starts them: both modes, and what they lose."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
pytest.importorskip("hdfs_native")

from spark_estimator.store import HDFSStore
from tests.docs.page_blocks import blocks_of
from tests.hadoop_daemons import Hadoop, start_hadoop
from tests.launch import clusters
from tests.launch.yarn import PARTS, list_settings, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


def list_applications(hadoop: Hadoop) -> list[dict[str, Any]]:
    """Return what YARN's list has of each application, the last one first."""
    with urllib.request.urlopen(f"{hadoop.resource_manager}/ws/v1/cluster/apps", timeout=30) as answer:
        applications = (json.load(answer).get("apps") or {}).get("app", [])
    return sorted(applications, key=lambda application: application["startedTime"], reverse=True)


def read_logs(hadoop: Hadoop, application: str) -> str:
    """Return the aggregated logs of an application, once those of both NodeManagers are there."""
    folder = f"{hadoop.uri}/logs/{getpass.getuser()}/bucket-logs-tfile/{application[-4:]}/{application}"
    store = HDFSStore(folder)
    deadline = time.monotonic() + 120
    while True:
        paths = [entry.path for entry in store.entries(folder) if not entry.path.endswith(".tmp")]
        if len(paths) == 2 or time.monotonic() > deadline:
            return b"".join(map(store.read, paths)).decode(errors="replace")
        time.sleep(1)


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
    assert "a line of rank 0" in read_logs(hadoop, application["id"])


def test_the_application_master_is_killed(hadoop: Hadoop, tmp_path: Path) -> None:
    """YARN starts the program again, and its run continues after the last checkpoint."""
    result = tmp_path / "result.json"
    arguments = (f"/killed/{time.time_ns()}", str(result), "rows", "outlive")
    with submit(hadoop, tmp_path, "cluster", *arguments, settings={"spark.yarn.maxAppAttempts": "2"}) as driver:
        assert driver.process.wait(800) == 0, driver.output()[-6000:]
    assert json.loads(result.read_text()) == {"rows": 200, "outlive": 200}
    assert re.search(
        r"run 'outlive' resumes from its checkpoint after epoch [1-9]",
        read_logs(hadoop, list_applications(hadoop)[0]["id"]),
    )


@pytest.mark.parametrize("kind", ["the page's", "submit.sh"])
def test_the_command(hadoop: Hadoop, tmp_path: Path, kind: str) -> None:
    """As it is, but for sizes: with a packed environment, whose interpreter is the present one."""
    (tmp_path / "train.py").write_text(blocks_of("docs/how-to/install/standalone.md", "python")[0].text)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "python", "bin/python")
    conf = tmp_path / "conf"
    conf.mkdir()
    sizes = ("memory", "instances", "cores", "pyspark")
    settings = {name: value for name, value in list_settings(hadoop).items() if not any(size in name for size in sizes)}
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    (command,) = (
        [block.text for block in blocks_of("docs/how-to/install/yarn.md", "sh") if "spark-submit" in block.text]
        if kind == "the page's"
        else [(clusters.ROOT / "docker" / "yarn" / "submit.sh").read_text()]
    )
    command = re.sub(r"(num-executors) \d", r"\1 2", re.sub(r"(-memory) \dg", r"\1 512m", command))
    command = re.sub(r"(executor.memoryOverhead)=\dg", r"\1=1g", command)
    command = re.sub(r"(driver.memoryOverhead)=\dg", r"\1=2g", command)
    folders = f"{clusters.SPARK_HOME}/bin:{os.environ['PATH']}"
    env = clusters.environment(**hadoop.environ(), SPARK_CONF_DIR=str(conf), PATH=folders, PYSPARK_PYTHON=None)
    done = subprocess.run(
        ["sh", "-ec", command, "submit.sh", "env.tar.gz", "train.py"],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    logs = read_logs(hadoop, list_applications(hadoop)[0]["id"])
    assert done.returncode == 0 and "sum 2.0" in logs, done.stdout[-3000:] + logs[-3000:]
