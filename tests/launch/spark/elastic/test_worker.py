"""The handle of a worker in a separate Spark task, if the task fails before the worker starts."""

from __future__ import annotations

import queue
import socket
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.events import EventRelay
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import read_manifests
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec
from spark_estimator.launch.spark.elastic.server import Over, SparkTask
from spark_estimator.launch.spark.elastic.worker import SparkJobs, SparkWorkerHandle
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.task_secrecy import Parcel, Parcels

NOTHING = Parcels(Parcel())


class Jobs(SparkJobs):
    """The jobs of a worker: notes what it is asked. Its tasks find no server."""

    def __init__(self, spark: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = ChannelAddress("127.0.0.1", taken.getsockname()[1], b"k" * 32)
        self.spark = spark
        self.job = JobSpec("0123456789abcdef", 1, "f()", channel=address)
        self.made: list[SparkTask] = []
        self.over: list[tuple[Over, bool]] = []

    def make_task(self) -> SparkTask:
        tag = JobTag(self.spark, "elastic worker")
        self.made.append(SparkTask(self.spark, len(self.made), self.job, NOTHING, tag, lambda sock: None))  # type: ignore[arg-type, return-value]
        return self.made[-1]

    def is_used(self, host: str) -> bool:
        return True

    def note_spark_end(self, over: Over, connected: bool) -> None:
        self.over.append((over, connected))

    def note_start(self, rank: int, facts: PeerFacts) -> None:
        raise AssertionError("no worker has started")

    def note_end(self, host: str, failure: FailureReport | None) -> None:
        raise AssertionError("no worker has started")


def handle_of(jobs: Jobs) -> tuple[SparkWorkerHandle, socket.socket]:
    ours, theirs = socket.socketpair()
    return SparkWorkerHandle(jobs, 0, 2, EventRelay(queue.Queue()), theirs), ours


def test_a_worker_that_was_stopped_before_it_had_a_slot(spark: Any) -> None:
    jobs = Jobs(spark)
    handle, ours = handle_of(jobs)
    handle.stop("because of A")
    handle.stop("because of B")
    outcome = handle.start()
    assert isinstance(outcome, Outcome) and outcome.failure is not None and handle.pid == 0
    assert (outcome.failure.rank, outcome.failure.kind) == (2, failures.STOPPED)
    assert outcome.failure.message == "was stopped because of A"
    assert jobs.made[0].given_up and jobs.over == []
    with ours:
        assert ours.recv(1) == b"", "the worker's end of the link is closed"


def test_a_task_that_spark_has_ended_is_a_failure(spark: Any) -> None:
    jobs = Jobs(spark)
    handle, ours = handle_of(jobs)
    outcome = handle.start()
    ours.close()
    assert isinstance(outcome, Outcome) and outcome.failure is not None
    assert outcome.failure.kind == failures.NOT_STARTED
    ((over, connected),) = jobs.over
    (manifest,) = read_manifests(over.rows)
    assert not connected and manifest.failure is not None
    assert "cannot reach the driver at 127.0.0.1" in manifest.failure.message
