"""Jobs of a fixed size in sessions with dynamic allocation, which begin without an executor: classic and Connect."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "4",
    # Copies of slow tasks, as soon as Spark can have them.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("on-demand")


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[str]:
    # Spark copies a task to another host only.
    with clusters.standalone(folder, ("127.0.0.1", "127.0.0.2")) as address:
        yield address


@pytest.fixture(scope="module", params=["classic", "connect"])
def results(request: pytest.FixtureRequest, folder: Path, master: str) -> dict[str, Any]:
    """What the driver program has found out in one kind of session."""

    def run(*arguments: str) -> dict[str, Any]:
        env = {"MARKER": uuid.uuid4().hex}
        with clusters.driver("on_demand.py", *arguments, folder=folder, env=env) as driver:
            result = driver.wait(800)
            return result | {"output": driver.output()}

    if request.param == "classic":
        return run(master, *(f"{name}={value}" for name, value in SETTINGS.items()))
    with clusters.connect_server(folder, master, SETTINGS) as address:
        return run(address)


def test_a_job_brings_its_executors(results: dict[str, Any]) -> None:
    assert results.get("executors", 0) == 0
    assert (results["first"], results["starts"]) == (3.0, ["0", "1"])
    assert results["distributor"] == 3.0
    assert results["rows"] == 10


def test_what_cannot_run_is_refused(results: dict[str, Any]) -> None:
    assert results["too many"].split("\n")[0] == (
        "NotEnoughSlotsError: 4 ranks need 4 slots at the same time, but this session can have at most 3: 3 executors "
        "(spark.dynamicAllocation.maxExecutors) with 1 slot each. Start the session with "
        "spark.dynamicAllocation.maxExecutors=4 or more, or use np=3."
    )
    for text in results["no number"]:
        assert text.startswith("NotEnoughSlotsError: the number of ranks defaults to the slots of the session, but ")
    assert results["without channel"].startswith("PreflightError: SPARK_ESTIMATOR_DRIVER_CHANNEL is 0, but a job with")


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("raises", "raised", "raised ValueError: rank 1 has had enough"),
        ("executor", "lost", "is out of contact: its Spark executor"),
        ("task", "lost", "is out of contact: its Spark executor, or its host, has died or was cut off"),
        ("result", "lost", ""),
    ],
)
def test_a_rank_that_fails_ends_all_and_is_named(results: dict[str, Any], how: str, kind: str, says: str) -> None:
    failure = results[how]
    assert (failure["type"], failure["rank"], failure["kind"]) == ("WorkerFailedError", 1, kind)
    assert failure["text"].startswith("rank 1 (host ") and says in failure["text"]
    assert failure["starts"] == ["0", "1"], "Spark has started the task again, but not the rank"
    assert results[f"after {how}"] == 3.0


def test_all_ranks_are_restarted(results: dict[str, Any]) -> None:
    assert results["restarted"] == [[[2, 0], [2, 1]]] * 2


def test_a_job_that_is_cancelled_says_so(results: dict[str, Any]) -> None:
    assert results["cancelled"].startswith("JobCancelledError: never_ends() was cancelled in Spark")


def test_a_start_waits_for_the_last_slot_as_long_as_it_may(results: dict[str, Any]) -> None:
    late = results["late start"]
    assert late["one"].startswith("StartTimeoutError: Spark has started len() on 1 of 2 ranks within 15 seconds")
    assert late["by variable"].startswith("StartTimeoutError: Spark has started len() on 1 of 2 ranks within 5 seconds")
    assert late["none"].startswith("StartTimeoutError: Spark has not started len() on any of 2 ranks within 5 seconds")
    assert (late["value"], late["starts"]) == (3.0, ["0", "1"]), "an executor that is lost before costs nothing"


def test_a_copy_of_a_task_starts_no_rank(results: dict[str, Any]) -> None:
    copies = results["copies"]
    assert (copies["values"], copies["starts"]) == ([0, 1], ["0", "1"])
    assert copies["copies"] is None or copies["copies"] > 0


def test_an_estimator_fits_and_its_model_transforms(results: dict[str, Any]) -> None:
    assert results["fit and transform"]["rows"] == 400
    assert results["fit and transform"]["furthest off"] < 0.1


def test_a_script_of_horovodrun(folder: Path, master: str) -> None:
    script = folder / "train.py"
    script.write_text(
        "import horovod.torch as hvd, sys, torch\n"
        "hvd.init()\n"
        "print(hvd.rank(), hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist(), sys.argv[1:])\n"
    )
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    command = ["-m", "spark_estimator", "run", "-np", "2", "--spark", "--master", master, *settings]
    done = subprocess.run(
        [sys.executable, *command, "python", str(script), "--lr", "0.1"],
        env=clusters.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert all(f"[{rank}]<stdout>:{rank} [2.0, 2.0] ['--lr', '0.1']" in done.stdout for rank in (0, 1)), done.stdout
