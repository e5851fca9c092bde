"""A job in one barrier stage, as its driver sees it."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import PicklingError, WorkerFailedError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.stage_job import run_on_spark, spark_environment

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def test_the_variables_of_workers(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SETTING", "stays here")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    variables = spark_environment(spark, JobOptions(environment={"NCCL_DEBUG": "WARN"}))
    assert (variables["HOROVOD_CYCLE_TIME"], variables["NCCL_DEBUG"]) == ("3", "WARN")
    assert variables["OMP_NUM_THREADS"] == "5", "Spark sets another value in the tasks of a local session"
    assert "MY_SETTING" not in variables


def test_values_and_the_rank_s_failure(spark: Any) -> None:
    def work(failing: int) -> int:
        rank = int(os.environ["HOROVOD_RANK"])
        if rank == failing:
            raise KeyError(f"of rank {rank}")
        return rank * 10

    assert run_on_spark(spark, work, 2, JobOptions(args=(9,), all_results=True)) == [0, 10]
    with pytest.raises(WorkerFailedError, match="raised KeyError: 'of rank 1'") as caught:
        run_on_spark(spark, work, 2, JobOptions(args=(1,)))
    assert caught.value.rank == 1


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
