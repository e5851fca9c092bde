"""When a launcher ends a job: after the first failure, once its cause could be reported; and after Ctrl-C."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.launch.job import failures
from spark_estimator.launch.job import monitor as launcher
from spark_estimator.launch.job.failures import FailureReport, first_failure
from spark_estimator.launch.job.monitor import (
    Begun,
    Failed,
    Finished,
    FrameReceived,
    JobMonitor,
    Lines,
    Message,
)


def report(rank: int, kind: str = failures.RAISED, **more: Any) -> Failed:
    return Failed(FailureReport(rank, "host", 1, kind, "failed", when=time.monotonic(), **more))


class Job:
    """Plays the supervisors: puts events into the monitor after given seconds, and ends when it is stopped."""

    def __init__(self, *script: tuple[float, Any], obeys: bool = True) -> None:
        self.stopped: list[str] = []
        self.cancelled = 0
        self.lines: list[str] = []
        self.obeys = obeys
        self.watch = JobMonitor(
            stop=self.stop, cancel=self.cancel, show_line=lambda rank, stream, text: self.lines.append(text)
        )
        for seconds, event in script:
            timer = threading.Timer(seconds, self.watch.events.put, [event])
            timer.daemon = True
            timer.start()

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)
        if self.obeys:
            self.watch.events.put(report(0, failures.STOPPED))
            self.watch.events.put(Lines(0, "stdout", ["the last line"]))
            self.watch.events.put(Finished())

    def cancel(self) -> None:
        self.cancelled += 1
        self.watch.events.put(Finished())


def test_a_job_that_ends_well_is_left_alone() -> None:
    job = Job((0.0, Lines(0, "stdout", ["x"])), (0.2, Finished()))
    job.watch.follow()
    assert job.lines == ["x"] and not job.stopped and not job.watch.reports


def test_after_a_failure_the_others_are_stopped_and_their_last_lines_shown() -> None:
    job = Job((0.0, report(1)))
    job.watch.follow()
    assert job.stopped == ["after that"] and job.lines == ["the last line"] and not job.cancelled
    assert [(report.rank, report.kind) for report in job.watch.reports] == [(1, failures.RAISED), (0, failures.STOPPED)]


def test_the_cause_may_come_after_those_that_it_took_along() -> None:
    job = Job((0.0, report(0, secondary=True)), (0.7, report(1, failures.KILLED)))
    job.watch.follow()
    cause = first_failure(job.watch.reports)
    assert cause is not None and cause.rank == 1


def test_a_report_that_says_more_takes_the_place_of_one_that_says_less() -> None:
    watch = JobMonitor(stop=lambda reason: None)
    for event in (report(1, failures.STOPPED), report(1), report(1, failures.STOPPED), report(-1), report(-1)):
        watch.note(event.report)
    assert [(report.rank, report.kind) for report in watch.reports] == [(1, "raised"), (-1, "raised"), (-1, "raised")]


def test_a_job_is_not_ended_while_the_reason_of_its_failure_is_awaited() -> None:
    job = Job((0.0, report(1, failures.LOST)))
    reason = replace(report(1, failures.LOST).report, message="with its reason", when=0.0)
    asked = []

    def awaits_more() -> bool:
        asked.append(len(job.stopped))
        if len(asked) == 3:
            job.watch.note(reason)
        return len(asked) < 3

    job.watch.awaits_more = awaits_more
    job.watch.follow()
    assert asked == [0, 0, 0] and job.stopped == ["after that"]
    assert job.watch.reports[0] == reason


def test_what_does_not_obey_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "CLEAN_UP", timedelta(seconds=0.3))
    job = Job((0.0, report(1)), obeys=False)
    job.watch.follow()
    assert job.stopped and job.cancelled == 1


def test_an_interruption_ends_the_job_first() -> None:
    job = Job((0.0, Lines(0, "stdout", ["interrupt me"])))

    def show(rank: int, stream: str, text: str) -> None:
        job.lines.append(text)
        if text == "interrupt me":
            raise KeyboardInterrupt

    job.watch.show_line = show
    with pytest.raises(KeyboardInterrupt):
        job.watch.follow()
    assert job.stopped == ["because the launcher was interrupted"] and job.lines[-1] == "the last line"


@pytest.mark.parametrize(
    "event",
    [
        Lines(0, "stdout", ["x" * (1 << 14)] * 64),
        Message(0, "x" * (1 << 20)),
        FrameReceived(0, {"kind": "ready", "why": "x" * (1 << 20)}),
        report(0, traceback="x" * (1 << 20)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_take_a_bounded_part_of_memory(event: Any) -> None:
    """A thread that adds more waits until some are taken."""
    events = JobMonitor(stop=lambda reason: None).events
    count = 0
    with pytest.raises(queue.Full):
        while count < 1000:
            events.put(event, timeout=0.01)
            count += 1
    assert 8 <= count <= 65, "of 1 MiB each"
    assert [events.get_nowait() for _ in range(count)] == [event] * count and events.empty()
    with pytest.raises(queue.Full):
        for _ in range(2000):
            events.put(Begun(0, 1), timeout=0.01)
    assert events.full()


def test_a_thread_that_waits_for_room_gets_it() -> None:
    events = JobMonitor(stop=lambda reason: None).events
    large = Message(0, "x" * (8 << 20))
    threads = [threading.Thread(target=lambda: [events.put(large) for _ in range(10)], daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [events.get(timeout=60) for _ in range(40)] == [large] * 40
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_while_nothing_begins_somebody_is_told() -> None:
    waits: list[float] = []
    job = Job((0.5, Finished()))
    job.watch.waiting = waits.append
    job.watch.follow()
    assert waits and waits == sorted(waits)
