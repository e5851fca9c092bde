"""`spark.run_elastic` on executors that can be lost, and over Spark Connect; Ctrl-C and the death of the driver."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = pytest.mark.slow

# Seconds; far more than anything here takes.
HANGS = 300


@pytest.mark.timeout(2 * HANGS)
@pytest.mark.parametrize(
    ("kind", "dies", "end"), [("local-cluster", "executor", "SIGINT"), ("connect", "rank", "SIGKILL")]
)
def test_losses_and_ends(kind: str, dies: str, end: str, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        where = "local-cluster[2,1,1024]"
        if kind == "connect":
            where = stack.enter_context(clusters.connect_server(tmp_path))
        arguments, env = (where, dies, str(tmp_path)), {"MARKER": marker[::-1]}
        driver = stack.enter_context(clusters.driver("elastic.py", *arguments, folder=tmp_path, env=env))
        for rank in range(2):
            driver.wait_for(f"rank {rank} trains", HANGS)
        output = driver.output()
        assert len(clusters.processes_with(marker)) >= 4, "two ranks, and what they have started"
        os.kill(driver.process.pid, signal.Signals[end])
        if end == "SIGINT":
            results = driver.wait()
            assert (results["left"], results["next"]) == (0, [0, 1])
            assert "endless() was interrupted; all of its ranks were stopped" in str(results["text"])
        clusters.wait_until_gone(marker)
    match = re.search(r"^FIRST (.*)$", output, re.MULTILINE)
    assert match
    first = json.loads(match[1])
    steps, sizes, weights = first["values"][0]
    assert first["values"] == [[steps, sizes, weights]] * 2, "both ranks have the same"
    assert sizes[:6] == [2] * 5 + [1] and sizes[-3:] == [2] * 3 and len(sizes) == steps, "each step counted once"
    assert weights == pytest.approx(first["alone"], abs=1e-6), "and with the commit's momentum"
    lost = "is out of contact: its Spark executor" if dies == "executor" else "was killed by signal 9"
    assert lost in output and "starting 1 more" in output


@pytest.mark.timeout(HANGS)
def test_each_rank_sees_the_gpus_of_its_task(tmp_path: Path) -> None:
    settings = ("executor.cores=2", "cores.max=2", "executor.resource.gpu.amount=2", "task.resource.gpu.amount=1")
    with clusters.standalone(tmp_path) as master:
        arguments = (master, *(f"spark.{setting}" for setting in settings))
        with clusters.driver("elastic_gpus.py", *arguments, folder=tmp_path) as driver:
            results = driver.wait(HANGS)
    assert sorted(results["each"]) == ["0", "1"]  # type: ignore[call-overload]
    assert [sorted(devices.split(",")) for devices in results["both"]] == [["0", "1"]]  # type: ignore[attr-defined]
