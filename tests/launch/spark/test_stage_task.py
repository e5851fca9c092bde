"""What a task returns to Spark, and which GPUs its worker gets if the user sets them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job.failures import find_marked
from spark_estimator.launch.job.gpus import ORDER, VISIBLE, TaskGpus
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import ResultRow, verify_value
from spark_estimator.launch.job.spec import JobSpec, TaskFacts
from spark_estimator.launch.spark.stage_task import StageTask, make_batches
from spark_estimator.launch.spark.task_secrecy import Parcel, Parcels

NOTHING = Parcels(Parcel())
VALUE = bytes(range(256)) * (10 << 10)


def facts(*gpus: str) -> TaskFacts:
    uuids = tuple(f"GPU-{name}" for name in gpus)
    return TaskFacts("host", "id", "127.0.0.1", 1, "", 7, TaskGpus(gpus, uuids, uuids), bytes(32))


def test_an_outcome_becomes_rows_of_spark_s_schema() -> None:
    outcome = Outcome(1, "host", 10, 0, None, VALUE, hashlib.sha256(VALUE).hexdigest())
    batches = list(make_batches(outcome, 3))
    assert all(batch.schema.names == list(ResultRow._fields) for batch in batches)
    rows = [ResultRow(*(column[0].as_py() for column in batch.columns)) for batch in batches]
    assert {row.partition for row in rows} == {3} and verify_value(rows) == VALUE


@pytest.mark.parametrize(
    ("environment", "variables"),
    [({}, {VISIBLE: "0,1", ORDER: "PCI_BUS_ID"}), ({ORDER: "FASTEST_FIRST"}, {VISIBLE: "0,1"})],
)
def test_the_user_s_order_of_gpus_stays(
    environment: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ORDER, raising=False)
    task = StageTask(JobSpec("job", 2, "f()", environment=environment, gpus_per_rank=1.0), NOTHING)
    assert task._pin_gpus([facts("0"), facts("1")], 0).variables == variables


def test_the_user_s_gpus_count_where_spark_gave_none() -> None:
    job: Any = JobSpec("job", 2, "f()", environment={VISIBLE: "5"}, gpus_per_rank=0.0)
    assert StageTask(job, NOTHING)._pin_gpus([facts(), facts()], 0).variables == {}


def test_two_ranks_with_the_same_gpu_are_a_failure_of_the_start() -> None:
    task = StageTask(JobSpec("job", 2, "f()", gpus_per_rank=1.0), NOTHING)
    with pytest.raises(RuntimeError) as caught:
        task._pin_gpus([facts("0"), facts("0")], 1)
    (report,) = find_marked(str(caught.value))
    assert report.rank == -1 and "could not start: local ranks 0, 1 have the same GPU, GPU-0" in report.message
