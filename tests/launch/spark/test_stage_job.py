"""A job in one stage, as its driver sees it: a barrier stage, or a plain one."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import PicklingError, PreflightError, WorkerFailedError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.rank_registration import DriverRegistration
from spark_estimator.launch.spark.stage_job import make_spark_environment, run_on_spark

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def test_the_variables_of_workers(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SETTING", "stays here")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    variables = make_spark_environment(spark, JobOptions(environment={"NCCL_DEBUG": "WARN"}))
    assert (variables["HOROVOD_CYCLE_TIME"], variables["NCCL_DEBUG"]) == ("3", "WARN")
    assert variables["OMP_NUM_THREADS"] == "5", "Spark sets another value in the tasks of a local session"
    assert "MY_SETTING" not in variables


@pytest.fixture(params=["barrier", "plain"])
def either(request: pytest.FixtureRequest, spark: Any) -> Iterator[Any]:
    """The session, in which ranks start together or one by one."""
    name = "spark.spark_estimator.barrier"
    spark.conf.set(name, str(request.param == "barrier"))
    yield spark
    spark.conf.unset(name)


def test_values_and_the_rank_s_failure(either: Any) -> None:
    def work(failing: int) -> int:
        rank = int(os.environ["HOROVOD_RANK"])
        if rank == failing:
            raise KeyError(f"of rank {rank}")
        return rank * 10

    assert run_on_spark(either, work, 2, JobOptions(args=(9,), all_results=True)) == [0, 10]
    with pytest.raises(WorkerFailedError, match="raised KeyError: 'of rank 1'") as caught:
        run_on_spark(either, work, 2, JobOptions(args=(1,)))
    assert caught.value.rank == 1


@pytest.mark.slow
def test_a_result_that_spark_has_lost_ends_the_job(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def repeated(registration: DriverRegistration, connected: int) -> list[int]:
        return [1] if connected == 2 and registration._complete else []

    monkeypatch.setattr(DriverRegistration, "find_repeated", repeated)
    spark.conf.set("spark.spark_estimator.barrier", "false")
    try:
        with pytest.raises(WorkerFailedError, match=r"^rank 1 \(host .*\) ended, but its result is lost") as caught:
            run_on_spark(spark, functools.partial(time.sleep, 60), 2)
    finally:
        spark.conf.unset("spark.spark_estimator.barrier")
    assert (caught.value.rank, caught.value.kind) == (1, failures.LOST)


def test_a_plain_stage_needs_the_driver_channel(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")
    spark.conf.set("spark.spark_estimator.barrier", "false")
    try:
        with pytest.raises(PreflightError, match="DRIVER_CHANNEL is 0, but a job without a barrier stage needs"):
            run_on_spark(spark, os.getpid, 2)
    finally:
        spark.conf.unset("spark.spark_estimator.barrier")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_frozen_supervisor_is_named_and_ends_the_job(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_SILENCE_SECONDS", "2.1")

    def work() -> None:
        import signal
        import time

        if os.environ["HOROVOD_RANK"] == "1":
            os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(120)

    with pytest.raises(WorkerFailedError, match=r"rank 1 \(host .*, pid \d+\) .* no heartbeat for 2\d s") as caught:
        run_on_spark(spark, work, 2, JobOptions(all_results=True))
    assert (caught.value.rank, caught.value.kind) == (1, failures.LOST)
    printed = capfd.readouterr().err
    assert re.search(
        r"supervisor of rank 1 \(host .*, pid \d+\) has sent no heartbeat for 1\d s: it, its Spark", printed
    )
    assert len(run_on_spark(spark, os.getpid, 2)) == 1, "the slots are free"


def test_nothing_is_started_for_a_function_that_cannot_be_pickled(spark: Any) -> None:
    with pytest.raises(PicklingError):
        run_on_spark(spark, print, 2, JobOptions(args=(spark,)))
