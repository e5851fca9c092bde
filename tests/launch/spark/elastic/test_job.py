"""`spark.run_elastic` in the existing session: ranks that die, raise and join while the job continues."""

from __future__ import annotations

import inspect
import io
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyspark")

from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import (
    JobCancelledError,
    NotEnoughSlotsError,
    PreflightError,
    StartTimeoutError,
    WorkerFailedError,
)
from spark_estimator.launch.elastic.placement import WARNED_FOR
from spark_estimator.launch.spark.elastic.job import SparkPlacement
from spark_estimator.spark import run_elastic
from tests.launch import clusters
from tests.launch.elastic import test_job
from tests.launch.elastic.test_job import Fault, mean_of, train

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


@pytest.fixture(scope="module", autouse=True)
def training_travels_by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(test_job)
    yield
    cloudpickle.unregister_pickle_by_value(test_job)


@pytest.fixture
def marker() -> Iterator[dict[str, str]]:
    """A mark in the environment of everything that the test's jobs start; all of it has to have ended."""
    text = uuid.uuid4().hex
    yield {clusters.MARKER: text}
    clusters.wait_until_gone(text, 10)


def idle() -> None:
    from spark_estimator.collectives import context

    context.init()
    print("at work", flush=True)
    threading.Event().wait()


def test_arguments_have_horovod_s_order_and_defaults() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(run_elastic).parameters.items()}
    assert list(defaults) == [
        *("fn", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "start_timeout", "elastic_timeout"),
        *("reset_limit", "env", "stdout", "stderr", "verbose", "nics", "prefix_output_with_timestamp"),
        *("min_np", "max_np"),
    ]
    assert (defaults.pop("fn"), defaults.pop("args")) == (inspect.Parameter.empty, ())
    assert (defaults.pop("verbose"), defaults.pop("prefix_output_with_timestamp")) == (1, False)
    assert set(defaults.values()) == {None}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"min_num_proc": 0}, ValueError, "min_num_proc=0: at least one"),
        ({"min_num_proc": 3, "num_proc": 2}, ValueError, "min_num_proc=3 is more than num_proc=2"),
        ({"max_num_proc": 1, "num_proc": 2}, ValueError, "num_proc=2 is more than max_num_proc=1"),
        ({"reset_limit": -1}, ValueError, "reset_limit must be an int, 0 or more; got -1"),
        ({"elastic_timeout": 0}, ValueError, "elastic_timeout must be a number of seconds above 0; got 0"),
        ({"num_proc": 3}, NotEnoughSlotsError, r"3 ranks need 3 slots at the same time, but this session has 2"),
        ({"num_proc": 4, "min_num_proc": 3}, NotEnoughSlotsError, "3 ranks need 3 slots"),
        ({"num_proc": 1, "fn": "train.py"}, TypeError, "the function to run on every rank"),
    ],
)
def test_what_cannot_be_is_refused(spark: Any, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run_elastic(**{"fn": idle, **arguments})


def test_a_rank_that_is_killed_is_replaced_and_the_state_goes_on(
    spark: Any, tmp_path: Path, marker: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Also: with more wanted than there are slots for, the job begins with those that there are."""
    lines = io.StringIO()
    more = (0.05, 2)
    with pytest.warns(DeprecationWarning, match="min_np is deprecated: use min_num_proc=1"):
        values = run_elastic(
            train, ([Fault("kill", 0)], str(tmp_path), *more), {}, 3, verbose=2, env=marker, stderr=lines, min_np=1
        )  # fmt: skip
    assert len(values) == 2, "nobody was killed: there were not three"
    values = run_elastic(
        train, ([Fault("kill", 0, size=2)], str(tmp_path), *more), {}, 2, 1, verbose=2, env=marker, stderr=lines
    )
    stderr = capfd.readouterr().err
    assert "running on 2 ranks (num_proc=3, but the session has fewer slots)" in stderr
    assert "lost rank 0 (host " in stderr and "starting 1 more" in stderr
    assert len(re.findall(r"rank \d runs on host \S+, pid \d+", stderr)) == 4 and "a new process runs on host" in stderr
    history = values[0]["history"]
    assert [step for step, _ in history] == list(range(len(history))), "each step counted once, from the commit on"
    assert [size for _, size in history][:6] == [2] * 5 + [1] and history[-1][1] == 2
    assert values[0]["total"] == pytest.approx(sum(mean_of(step, size) for step, size in history))
    assert [value["total"] for value in values] == [values[0]["total"]] * 2
    assert "[1]<stderr>:" in lines.getvalue() and "restoring the last commit" in lines.getvalue()


def test_what_ends_the_job_is_told_with_the_traceback_of_the_first(
    spark: Any, tmp_path: Path, marker: dict[str, str]
) -> None:
    with pytest.raises(WorkerFailedError, match="it reached reset_limit=0") as caught:
        run_elastic(train, ([Fault("raise", 1, size=2)], str(tmp_path)), {}, 2, 1, reset_limit=0, env=marker)
    assert caught.value.rank == 1 and "a bug of the user's" in str(caught.value.__cause__)
    with pytest.raises(WorkerFailedError, match="1 rank is left, and at least 2 are needed") as caught:
        run_elastic(train, ([Fault("kill", 1, size=2, step=3)], str(tmp_path)), num_proc=2, reset_limit=0, env=marker)
    assert (caught.value.rank, caught.value.signal, caught.value.host) == (1, 9, socket.gethostname())


def test_cancelling_ends_everything(spark: Any, marker: dict[str, str]) -> None:
    class Cancels(io.StringIO):
        def write(self, text: str) -> int:
            if "at work" in text:
                spark.sparkContext.cancelJobGroup("mine")
            return super().write(text)

    spark.sparkContext.setJobGroup("mine", "a notebook's")
    try:
        with pytest.raises(JobCancelledError, match=r"idle\(\) was cancelled in Spark, and its ranks were stopped"):
            run_elastic(idle, num_proc=2, min_num_proc=1, env=marker, stdout=Cancels())
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            spark.sparkContext.setLocalProperty(name, None)
    assert run_elastic(lambda: os.environ["HOROVOD_RANK"], num_proc=2, start_timeout=60) == ["0", "1"]


def test_slots_that_others_hold_are_named(spark: Any, tmp_path: Path, marker: dict[str, str]) -> None:
    hold = tmp_path / "hold"
    hold.touch()

    def wait(batches: Any) -> Any:
        (tmp_path / "held").touch()
        while hold.exists():
            time.sleep(0.1)
        yield from batches

    holder = threading.Thread(target=lambda: spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect())
    holder.start()
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.05)
        with pytest.raises(StartTimeoutError, match=r"other jobs .* running: stage \d+ .* of 1 tasks"):
            run_elastic(idle, num_proc=2, start_timeout=3, env=marker)
    finally:
        hold.unlink()
        holder.join()


def test_a_host_on_which_processes_die_again_and_again_is_not_used() -> None:
    from spark_estimator.launch.spark.elastic.worker import HostRecord

    record = HostRecord()
    record.note_start("a")
    assert [record.note_failure("a") for _ in range(4)] == [False] * 4 and record.is_used("a"), "there is no other"
    record.note_start("b")
    assert not record.is_used("a") and record.is_used("b") and record.is_used("one that nobody has seen")
    assert [record.note_failure("b") for _ in range(3)] == [False] * 3 and record.is_used("a"), "it is no worse"
    record.note_start("c")
    assert not record.is_used("b") and [record.note_failure("c") for _ in range(2)] == [False] * 2


def test_the_driver_channel_is_needed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")
    with pytest.raises(PreflightError, match="SPARK_ESTIMATOR_DRIVER_CHANNEL is 0"):
        run_elastic(idle, num_proc=2)


class PlacedWorker:
    """As much of a worker's handle as its placement asks for."""

    def __init__(self) -> None:
        self.avoided = 0

    def avoid_host(self) -> None:
        self.avoided += 1


def test_a_warned_process_leaves_its_host_until_the_warning_is_old() -> None:
    placement = SparkPlacement(Terms(3, 1))
    workers = [PlacedWorker(), PlacedWorker(), PlacedWorker()]
    placement.workers.update(enumerate(workers))  # type: ignore[arg-type]
    assert placement.note_warning(0, 0.0) and placement.note_warning(2, 3.0)
    assert placement.find_surplus() == placement.find_warned() == [0, 2]
    assert [worker.avoided for worker in workers] == [1, 0, 1]
    assert placement.readmit_hosts(WARNED_FOR.total_seconds() + 2) == []
    assert placement.find_surplus() == [2], "warnings are dropped if nothing came of them"
