"""The same jobs on every kind of Spark: local threads, local-cluster, standalone with GPUs, Connect.

The cases of a job, and the API by which each is tested. The APIs differ only in how they handle their arguments
(``tests/spark``, ``test_runner``); behind ``launch.spark.entry`` they share one path, so each case is tested by one of
them on every kind:

- a value, an exception, kill -9, an end with status 0, Ctrl-C, too few slots, slots that come late: `HorovodRunner`
- values of all ranks, a start that takes too long, a job group or tag that is cancelled, a lost executor: `spark.run`
- a job that runs out of time, and values: `SparkBackend`, which hands everything to `spark.run`
- `TorchEstimator`: fit and transform

However a job ends, nothing that its ranks have started is alive five seconds later: the driver program checks it after
each job, by a mark in the environment, which a process keeps in every group.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from spark_estimator.errors import remove_links
from tests.launch import clusters

# Seconds; far more than anything here takes: what is slower hangs.
HANGS = 60
KINDS = ["local", "local-cluster", "standalone", "connect", "connect on local-cluster", "connect on standalone"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everywhere")


@pytest.fixture(scope="module", params=KINDS)
def results(request: pytest.FixtureRequest, folder: Path) -> Any:
    """What the driver program has found out on one kind of Spark."""
    marker = uuid.uuid4().hex

    def run(*arguments: str) -> dict[str, Any]:
        env = {"MARKER": marker}
        with clusters.driver("all_cases.py", *arguments, folder=folder, env=env) as driver:
            result = driver.wait(400)
            result["output"] = driver.output()
        result["marker"] = marker
        print({name: result[name] for name in result if name.startswith("seconds")})
        print(
            {
                name: result[name]["seconds"]
                for name in result
                if isinstance(result[name], dict) and "seconds" in result[name]
            }
        )
        return result

    if request.param == "local":
        return run("local[2]")
    if request.param == "local-cluster":
        return run("local-cluster[2,1,1024]")
    if request.param == "connect":
        with clusters.connect_server(folder) as address:
            return run(address)
    if request.param == "connect on local-cluster":
        memory = {"spark.executor.memory": "1g"}
        with clusters.connect_server(folder, "local-cluster[2,1,1024]", memory) as address:
            return run(address)
    settings = {"spark.executor.cores": "2", "spark.cores.max": "2"}
    settings |= {"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "1"}
    with clusters.standalone(folder) as master:
        if request.param == "standalone":
            return run(master, *(f"{name}={value}" for name, value in settings.items()))
        with clusters.connect_server(folder, master, settings) as address:
            return run(address)


# The fixture runs the whole program, on daemons that it has to start first. `test_connect` has the core of it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_ranks_compute_together_and_rank_0_s_value_comes_back(results: dict[str, Any]) -> None:
    value = results["value"]
    assert value["sum"] == 30.0
    assert [rank["rank"] for rank in value["ranks"]] == [0, 1]
    assert [rank["HOROVOD_RANK"] for rank in value["ranks"]] == ["0", "1"]
    assert {rank["HOROVOD_SIZE"] for rank in value["ranks"]} == {"2"}
    assert [rank["HOROVOD_LOCAL_RANK"] for rank in value["ranks"]] == ["0", "1"]
    assert len({rank["pid"] for rank in value["ranks"]}) == 2


def test_lines_come_to_the_driver_when_they_are_asked_for(results: dict[str, Any]) -> None:
    assert results["all"] == 3.0
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:rank {rank} adds" in results["output"]


def test_a_backend_brings_the_values_of_all_ranks(results: dict[str, Any]) -> None:
    assert results["backend"] == [[rank * 2.5, "x", 3 << 20] for rank in (0, 1)]


def test_an_estimator_fits_and_its_model_transforms(results: dict[str, Any]) -> None:
    assert results["fit and transform"]["rows"] == 400
    assert results["fit and transform"]["furthest off"] < 0.1


def test_run_brings_the_values_of_all_ranks_and_waits_no_longer_than_it_may(
    results: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    called = results["run"]
    assert called["values"] == [[rank * 1.5, "x", 3 << 20] for rank in (0, 1)]
    assert called["lines"] == [f"[{rank}]<stdout>:rank {rank} was asked" for rank in (0, 1)]
    assert called["by default"] == [0, 0]
    text = called["held up"]
    assert text.startswith("StartTimeoutError: Spark has not started len() on any of 2 ranks within 8 seconds"), text
    assert "This session has 2: " in text
    if "connect" in request.node.name:
        assert "Spark Connect doesn't show what uses them" in text
    else:
        assert "other jobs of this application are running: stage " in text and " of 2 tasks running, " in text


@pytest.mark.parametrize(
    ("how", "exitcode", "says"),
    [
        ("exception", None, "raised ValueError: rank 1 has had enough"),
        ("exception without channel", None, "raised ValueError: rank 1 has had enough"),
        ("kill", -9, "was killed by signal 9 (SIGKILL)"),
        ("kill without channel", -9, "was killed by signal 9 (SIGKILL)"),
        ("sys.exit", 0, "called sys.exit(0) before fail() returned"),
        ("os._exit", 0, "ended with exit status 0 before fail() returned"),
    ],
)
def test_the_rank_that_failed_first_is_named(
    results: dict[str, Any], how: str, exitcode: int | None, says: str
) -> None:
    failure = results[how]
    assert failure["type"] == "WorkerFailedError", failure
    assert failure["rank"] == 1 and failure["seconds"] < HANGS
    assert failure["exitcode"] == exitcode and failure["signal"] == (9 if exitcode == -9 else None)
    assert failure["kind"] == {"exception": "raised", "kill": "killed"}.get(how.split(" ")[0], "exited")
    assert failure["host"] in failure["text"] and "the last words" in failure["log_tail"].splitlines()
    assert ("in fail\n" in failure["traceback"]) == how.startswith(("exception", "sys"))
    assert failure["text"].startswith("rank 1 (host ") and says in failure["text"].splitlines()[0]
    if "without channel" in how:
        assert results["value without channel"] == 3.0
    else:
        assert "rank 0 (host " in failure["text"], "what became of the others"
        assert results[f"after {how}"] == 3.0, "the next job in the same session"
    if how.startswith("exception"):
        assert "in fail\n" in failure["cause"] and 'raise ValueError("rank 1 has had enough")' in failure["cause"]


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("interrupt", "KeyboardInterrupt", r"never_ends\(\) was interrupted; all of its ranks were stopped"),
        ("cancel", "JobCancelledError", r"never_ends\(\) was cancelled in Spark, and its ranks were stopped: .+"),
        ("timeout", "JobTimeoutError", r"never_ends\(\) on 2 ranks did not end within 5 seconds \(timeout\): .+"),
    ],
)
def test_who_ends_a_job_from_outside_gets_its_slots_back(
    results: dict[str, Any], how: str, kind: str, says: str
) -> None:
    ended = results["from outside"][how]
    print(how, ended)
    assert ended["type"] == kind and ended["seconds"] < HANGS, ended
    assert re.fullmatch(says, remove_links(ended["text"])), ended["text"]
    assert ended["next"] == 3.0
    assert "attempt 1 of 3" not in results["output"], "what was ended on purpose is not tried again"


def test_slots_that_another_job_holds_are_waited_for(results: dict[str, Any]) -> None:
    assert results["slow start"] == 3.0


def test_a_job_that_lost_an_executor_is_started_anew(results: dict[str, Any]) -> None:
    assert results["restarted"]["values"] == [[[2, 0], [2, 1]]] * 2
    assert re.search(
        r"^spark_estimator: attempt 1 of 2 failed: rank [01] \(host \S+, pid \d+\) is out of contact: its Spark "
        r"executor.*; restarting all ranks$",
        results["output"],
        re.MULTILINE,
    )


def test_nothing_is_left_alive(results: dict[str, Any]) -> None:
    clusters.wait_until_gone(results["marker"], 10)


def test_a_large_value_arrives_whole(results: dict[str, Any]) -> None:
    assert results["large"] == 20 << 20


def test_modules_that_were_sent_along_are_found(results: dict[str, Any]) -> None:
    assert results["artifact"] == 42


def test_too_many_ranks_are_refused_with_the_arithmetic(results: dict[str, Any]) -> None:
    refusal = results["too many"]
    assert refusal["type"] == "NotEnoughSlotsError"
    assert refusal["text"].startswith("64 ranks need 64 slots at the same time, but this session has 2: ")
    assert re.search(r"Start the (session|Spark Connect server)|Give the session", refusal["text"]), refusal["text"]


def test_ranks_see_their_host_s_devices_in_local_rank_order(
    results: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    seen = [rank["CUDA_VISIBLE_DEVICES"] for rank in results["value"]["ranks"]]
    if "standalone" in request.node.name:
        assert seen[0] == seen[1]
        assert sorted(seen[0].split(",")) == ["0", "1"]
    else:
        assert seen == [None, None]
