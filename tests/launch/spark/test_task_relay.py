"""A supervisor's events reach the driver on its channel, or the executor's log and the manifest without one."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec, TaskFacts
from spark_estimator.launch.spark.task_relay import TaskRelay
from spark_estimator.observe import frames
from spark_estimator.observe.driver_server import DriverServer

JOB_ID = "0123456789abcdef"
FACTS = TaskFacts("host", "id", "127.0.0.1", 1, "", os.getpid())


class Driver:
    """The driver's server, what it has received, and a relay that is connected to it."""

    def __init__(self) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        self.server = DriverServer("127.0.0.1", JOB_ID, 1, lambda _, frame: self.received.put(frame))
        address = ChannelAddress(self.server.address, self.server.port, self.server.token)
        self.relay = TaskRelay(JobSpec(JOB_ID, 1, "f()", channel=address, forward_lines=True))
        self.stops: list[str] = []
        self.relay.connect(0, self.stops.append)
        deadline = time.monotonic() + 20
        while not self.server.connected:  # it notes a connection after the other end does
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def next(self) -> dict[str, Any]:
        return self.received.get(timeout=20)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.relay.close()
    driver.server.close()


def test_events_reach_the_driver(driver: Driver) -> None:
    relay = driver.relay
    assert relay.connected
    relay.report_placement(0, 10)
    relay.note_begin(0, 10)
    relay.pass_lines(0, "stdout", ["a", "b"])
    relay.log(0, "a message")
    relay.note_failure(FailureReport(0, "host", 10, failures.RAISED, "raised"))
    relay.close()
    kinds = [frames.PLACED, frames.BEGUN, frames.LINE, frames.LINE, frames.LOG, frames.FAILURE]
    assert [driver.next()["kind"] for _ in kinds] == kinds
    assert relay.to_manifest() == {"lines": [], "left_out": 0, "logged": 0, "log_problem": ""}


def test_facts_of_all_supervisors_come_from_the_driver(driver: Driver) -> None:
    for kind, fields, answer in (
        (frames.EVERYONE, {"facts": [FACTS.to_json()]}, [FACTS]),
        (frames.GATHER, {}, None),
    ):
        driver.server.send(0, kind, fields)
        assert driver.relay.gather_facts(FACTS) == answer
        assert TaskFacts.from_json(driver.next()["facts"]) == FACTS
    driver.server.stop("because of a test")
    with pytest.raises(ConnectionError, match="the driver ended the job while addresses were exchanged"):
        driver.relay.gather_facts(FACTS)


def test_without_a_channel_lines_are_logged_and_the_last_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    relay = TaskRelay(JobSpec(JOB_ID, 1, "f()", forward_lines=True))
    relay.connect(0, lambda reason: None)
    assert not relay.connected and relay.gather_facts(FACTS) is None
    relay.report_placement(3, 10)
    relay.pass_lines(3, "stderr", ["a"])
    relay.log(3, "a message")
    relay.note_failure(FailureReport(3, "host", 10, failures.RAISED, "raised KeyError", "Traceback ..."))
    relay.close()
    assert relay.to_manifest()["lines"] == [["stderr", "a"], ["", "a message"]]
    text = "[3]<stderr>:a\n[3] a message\nrank 3 (host host, pid 10) raised KeyError\nTraceback ...\n"
    assert capfd.readouterr().err == text


def test_a_driver_that_cannot_be_reached_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    relay = TaskRelay(JobSpec(JOB_ID, 1, "f()", channel=ChannelAddress("127.0.0.1", 1, b"k" * 32), forward_lines=False))
    relay.connect(0, lambda reason: None)
    assert not relay.connected
    assert "spark_estimator: no connection to the driver at 127.0.0.1:1:" in capfd.readouterr().err
    relay.pass_lines(0, "stdout", ["not for the driver"])
    assert relay.to_manifest()["lines"] == [], "the job does not forward lines"
