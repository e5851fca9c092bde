"""When a launcher ends a job: after the first failure, once its cause could be reported; and after Ctrl-C."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.launch.job import failures
from spark_estimator.launch.job import monitor as launcher
from spark_estimator.launch.job.events import Failed, Finished, Lines
from spark_estimator.launch.job.failures import FailureReport, find_first_failure
from spark_estimator.launch.job.monitor import EventDisplay, JobMonitor


def report(rank: int, kind: str = failures.RAISED, **more: Any) -> Failed:
    return Failed(FailureReport(rank, "host", 1, kind, "failed", when=time.monotonic(), **more))


class Job:
    """Plays the supervisors: puts events into the monitor after given seconds, and ends when it is stopped."""

    def __init__(self, *script: tuple[float, Any], obeys: bool = True) -> None:
        self.stopped: list[str] = []
        self.cancelled = 0
        self.lines: list[str] = []
        self.obeys = obeys
        self.display = EventDisplay(show_line=lambda rank, stream, text: self.lines.append(text))
        self.watch = JobMonitor(stop=self.stop, cancel=self.cancel, display=self.display)
        for seconds, event in script:
            timer = threading.Timer(seconds, self.display.events.put, [event])
            timer.daemon = True
            timer.start()

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)
        if self.obeys:
            self.display.events.put(report(0, failures.STOPPED))
            self.display.events.put(Lines(0, "stdout", ["the last line"]))
            self.display.events.put(Finished())

    def cancel(self) -> None:
        self.cancelled += 1
        self.display.events.put(Finished())


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
    cause = find_first_failure(job.watch.reports)
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

    job.display.show_line = show
    with pytest.raises(KeyboardInterrupt):
        job.watch.follow()
    assert job.stopped == ["because the launcher was interrupted"] and job.lines[-1] == "the last line"


def test_while_nothing_begins_somebody_is_told() -> None:
    waits: list[float] = []
    job = Job((0.5, Finished()))
    job.watch.waiting = waits.append
    job.watch.follow()
    assert waits and waits == sorted(waits)
