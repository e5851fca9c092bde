"""Ctrl-C and sudden death of a job's launching process: nothing of it stays; after Ctrl-C the session still works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def connect_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("pyspark")
    with clusters.connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(params=["processes", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("local", "connect"))])
def arguments(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "processes":
        return ["-2"]
    pytest.importorskip("pyspark")
    return ["2", "local[2]" if request.param == "local" else request.getfixturevalue("connect_address")]


def test_ctrl_c_ends_all_ranks_and_the_next_job_works(arguments: list[str], tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    with clusters.driver("endless.py", *arguments, folder=tmp_path, env={"MARKER": marker[::-1]}) as driver:
        driver.wait_for("rank 0 trains")
        driver.wait_for("rank 1 trains")
        assert len(clusters.processes_with(marker)) >= 4, "two ranks, and what they have started"
        sent = time.time()
        os.kill(driver.process.pid, signal.SIGINT)
        results = driver.wait()
    print(f"KeyboardInterrupt came out after {results['interrupted'] - sent:.2f} s")  # type: ignore[operator]
    assert results["left"] == 0, "processes of the job that were alive when KeyboardInterrupt came out of run()"
    assert results["next"] == 2.0
    clusters.wait_until_gone(marker)


def test_a_driver_that_is_killed_leaves_nothing(arguments: list[str], tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    with clusters.driver("endless.py", *arguments, folder=tmp_path, env={"MARKER": marker[::-1]}) as driver:
        driver.wait_for("rank 0 trains")
        driver.wait_for("rank 1 trains")
        assert len(clusters.processes_with(marker)) >= 4
        os.kill(driver.process.pid, signal.SIGKILL)
        killed = time.time()
        clusters.wait_until_gone(marker)
        print(f"nothing was left after {time.time() - killed:.2f} s")


COMMAND = """
import os, subprocess, sys
import torch
import horovod.torch as hvd
hvd.init()
subprocess.Popen(["sleep", "1000"])
for step in range(100_000_000):
    hvd.allreduce(torch.ones(1000), name="x")
    if step == 200:
        print("rank", hvd.rank(), "trains")
"""


# Ctrl-C is tried in test_cli.
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_horovodrun_takes_its_ranks_along(number: signal.Signals, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    script = tmp_path / "train.py"
    script.write_text(COMMAND)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", sys.executable, str(script)]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=clusters.environment(SPARK_ESTIMATOR_TEST_MARKER=marker),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Under nohup the tests ignore SIGHUP, and so would the launcher.
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None,
        )
    try:
        driver = clusters.Driver(process, log)
        driver.wait_for("[0]<stdout>:rank 0 trains")
        driver.wait_for("[1]<stdout>:rank 1 trains")
        process.send_signal(number)
        process.wait(30)
        assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
        if number != signal.SIGKILL:
            assert f"horovodrun: ended by {number.name}; all ranks were stopped." in log.read_text()
        clusters.wait_until_gone(marker)
    finally:
        clusters.kill_group(process)
