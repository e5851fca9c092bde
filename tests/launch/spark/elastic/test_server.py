"""The driver's server of an elastic job's tasks, and the sending of a task through Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.job.results import read_manifests
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark.elastic.server import Connected, Over, SparkTask, TaskServer, open_link
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.task_secrecy import Parcel, Parcels
from spark_estimator.observe.channel import connect_socket

NEVER = timedelta(0)


class Case:
    """A server that expects one task."""

    def __init__(self, spark: Any) -> None:
        self.server = TaskServer("127.0.0.1", JobSpec("0123456789abcdef", 1, "f()"))
        tag = JobTag(spark, "elastic server")
        self.task = SparkTask(
            spark, 0, self.server.job, Parcels(Parcel()), tag, lambda sock: open_link(sock, NEVER, NEVER)
        )
        self.server.expect(self.task)

    def connect(self, number: int = 0, job_id: str | None = None) -> Any:
        address = self.server.job.channel
        assert address is not None
        job_id = self.server.job.job_id if job_id is None else job_id
        return connect_socket((address.host, address.port), address.token, job_id, number)[0]


@pytest.fixture
def case(spark: Any) -> Iterator[Case]:
    case = Case(spark)
    yield case
    case.server.close()
    case.task.give_up()
    case.task.close()


def test_only_expected_tasks_are_admitted(case: Case) -> None:
    for number, job_id in ((1, None), (0, "f" * 16)):
        with pytest.raises(AuthenticationError):
            case.connect(number, job_id)
    with case.connect():
        event = case.task.events.get(timeout=20)
        assert isinstance(event, Connected)
        event.link.give_up()
    case.task.give_up()
    with pytest.raises(AuthenticationError):
        case.connect()


def test_a_task_that_was_given_up_is_never_submitted(case: Case) -> None:
    case.task.give_up()
    over = case.task.events.get(timeout=20)
    assert isinstance(over, Over) and "cancelled before Spark had started it" in str(over.error)
    assert case.task.given_up and not case.task.submitted


def test_a_task_connects_and_ends_with_its_connection(case: Case) -> None:
    case.task.submit()
    event = case.task.events.get(timeout=60)
    assert isinstance(event, Connected), event
    assert next(event.link.read_frames())[0] == frames.HELLO
    case.task.hang_up()
    over = case.task.wait(timedelta(seconds=60))
    assert over is not None and over.error is None and read_manifests(over.rows) == [], "it had no worker"
    with contextlib.suppress(OSError):
        event.link.give_up()
