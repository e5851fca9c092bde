"""How supervisors register at the driver if Spark starts their tasks one by one, and some of them twice."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import find_marked
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec, TaskFacts
from spark_estimator.launch.spark import meeting
from spark_estimator.launch.spark.meeting import DriverMeeting, NotNeededError, SetupError
from spark_estimator.launch.spark.rank_registration import DriverRegistration
from spark_estimator.launch.spark.task_relay import TaskRelay
from spark_estimator.observe import frames
from spark_estimator.observe.driver_server import DriverServer

JOB_ID = "0123456789abcdef"


class Attempt:
    """One attempt of a task, as far as it goes without a worker."""

    def __init__(self, job: JobSpec, partition: int) -> None:
        self.relay = TaskRelay(job)
        self.stops: list[str] = []
        self._partition = partition
        self._meeting = DriverMeeting(job, partition, self.relay)

    def meet(self) -> list[str]:
        """The hosts of all supervisors."""
        address = self._meeting.find_address()
        self._meeting.connect(self.stops.append)
        facts = TaskFacts(f"host {self._partition}", "id", address, 1, "", os.getpid())
        return [task.host for task in self._meeting.gather_facts(facts)]


class Driver:
    """The driver's half of a job of two ranks."""

    def __init__(self) -> None:
        self.losses: queue.Queue[int] = queue.Queue()
        self.registration = DriverRegistration(2, lambda *frame: self.server.send(*frame))
        self.server = DriverServer("127.0.0.1", JOB_ID, 2, self._receive, approve=self.registration.approve)
        address = ChannelAddress(self.server.address, self.server.port, self.server.token)
        self.job = JobSpec(JOB_ID, 2, "f()", channel=address)
        self._threads = ThreadPoolExecutor(4)
        self._attempts: list[Attempt] = []

    def _receive(self, partition: int, frame: dict[str, Any]) -> None:
        if frame["kind"] == frames.FACTS:
            self.registration.add(partition, frame["facts"])
        elif frame["kind"] == frames.GONE and not self.registration.remove(partition):
            self.losses.put(partition)

    def start(self, partition: int) -> tuple[Attempt, Future[list[str]]]:
        attempt = Attempt(self.job, partition)
        self._attempts.append(attempt)
        return attempt, self._threads.submit(attempt.meet)

    def registered(self, count: int) -> None:
        wait_for(lambda: len(self.registration._facts) == count)

    def close(self) -> None:
        self.server.close()
        self._threads.shutdown()
        for attempt in self._attempts:
            attempt.relay.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(meeting, "_ASKS_EVERY", timedelta(seconds=0.01))
    made = Driver()
    yield made
    made.close()


def test_the_first_waits_for_the_last(driver: Driver) -> None:
    _, first = driver.start(1)
    driver.registered(1)
    assert not first.done()
    _, last = driver.start(0)
    assert first.result(20) == last.result(20) == ["host 0", "host 1"]


def test_a_loss_before_the_last_is_there_is_made_good(driver: Driver) -> None:
    lost, _ = driver.start(0)
    driver.registered(1)
    _, again = driver.start(0)
    lost.relay._channel._sock.shutdown(2)  # type: ignore[union-attr]  # as its executor's death does
    _, other = driver.start(1)
    assert again.result(20) == other.result(20) == ["host 0", "host 1"]
    assert driver.losses.empty()


def test_no_rank_is_started_twice(driver: Driver) -> None:
    first, met = driver.start(0)
    driver.start(1)[1].result(20)
    met.result(20)
    copy, second = driver.start(0)
    first.relay.close()  # in good order: its rank has ended
    wait_for(lambda: driver.server.connected == 1)
    wait_for(lambda: 0 in driver.registration._refused)
    assert not second.done() and not copy.relay.connected
    driver.server.close()
    with pytest.raises(NotNeededError, match="the job is over"):
        second.result(20)


def test_the_loss_of_a_rank_is_a_loss(driver: Driver) -> None:
    first, met = driver.start(0)
    driver.start(1)[1].result(20)
    met.result(20)
    first.relay._channel._sock.shutdown(2)  # type: ignore[union-attr]
    assert driver.losses.get(timeout=20) == 0
    driver.server.stop("after that")
    with pytest.raises(NotNeededError, match="the driver ended the job"):
        driver.start(0)[1].result(20)


def test_a_stop_reaches_those_that_wait(driver: Driver) -> None:
    waiting, met = driver.start(0)
    driver.registered(1)
    driver.server.stop("because of a test")
    with pytest.raises(NotNeededError):
        met.result(20)
    assert waiting.stops == ["because of a test"]


def test_a_stop_before_there_is_a_worker_is_kept_for_it(driver: Driver) -> None:
    driver.server.stop("because of a test")
    attempt = Attempt(driver.job, 0)
    attempt._meeting.find_address()
    wait_for(lambda: attempt.relay.stopped)
    stopped = threading.Event()
    attempt._meeting.connect(lambda reason: stopped.set())
    assert stopped.wait(20)
    attempt.relay.close()


def test_a_driver_that_is_lost_or_out_of_reach_is_an_error_of_the_task(driver: Driver) -> None:
    waiting, met = driver.start(0)
    driver.registered(1)
    waiting.relay._channel._sock.shutdown(2)  # type: ignore[union-attr]
    with pytest.raises(SetupError, match="lost its connection to the driver before all ranks were there"):
        met.result(20)
    driver.server.close()
    with pytest.raises(SetupError) as caught:
        Attempt(driver.job, 1).meet()
    (report,) = find_marked(str(caught.value))
    assert report.kind == failures.NOT_STARTED and report.rank == -1
    assert f"cannot reach the driver at 127.0.0.1:{driver.server.port}" in report.message
    assert "a job without a barrier stage needs" in report.message
