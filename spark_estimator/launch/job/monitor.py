"""Monitors a running job, for every launcher: shows events, notes failures, ends the job after the first or Ctrl-C."""

from __future__ import annotations

import collections
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from spark_estimator.collectives.other_launchers.launchers import find_foreign_job
from spark_estimator.env import IGNORE_LAUNCHER_VARIABLE, Settings
from spark_estimator.errors import JobTimeoutError, StartTimeoutError
from spark_estimator.launch.job.events import (
    Begun,
    Event,
    EventQueue,
    Failed,
    FilePiece,
    Finished,
    LauncherMessage,
    Lines,
    Message,
    ProgressReported,
    RecordReceived,
)
from spark_estimator.launch.job.failures import LOST, STOPPED, FailureReport, find_first_failure
from spark_estimator.launch.job.interruption import is_interruption, raise_lost_interruption, remember_interruption
from spark_estimator.launch.job.rank_files import DriverFiles
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import announce, flush, print_line, print_message
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.observe.stragglers import StragglerWatch
from spark_estimator.observe.training_records import TakeRecord

_log = get_logger(__name__)

# Another rank may have failed on its own an instant before the first report: wait for its report.
GRACE = timedelta(seconds=0.3)
# A lost peer is never the cause: wait for the report of the rank that was lost.
GRACE_WITHOUT_CAUSE = timedelta(seconds=1.5)
# How long to wait for the end of stopped ranks before the launcher continues without them.
CLEAN_UP = timedelta(seconds=5)
# The same before `cancel`, if there is one: a rank that is still starting does not receive a stop.
_BEFORE_CANCELLING = timedelta(seconds=2)
_SLICE_SECONDS = 0.1


@dataclass
class EventDisplay:
    """Shows the events of one job in the launcher's main thread.

    Attributes:
        show_line: prints a line.
        show_begun: called with rank and process once user code has begun on a rank.
        take_record: receives each record of an estimator's training; None: they are dropped.
        files: takes the ranks' files, within its context; None: they are dropped.
        status: the line that shows the progress of the job; None: it is not shown.
        stragglers: names ranks that hold up the others; None: ranks do not report, or their number changes.
        events: reports of the supervisors, added by other threads.
        begun: the ranks on which user code has begun.
    """

    show_line: Callable[[int, str, str], None] = print_line
    show_begun: Callable[[int, int], None] | None = None
    take_record: TakeRecord | None = None
    files: DriverFiles | None = None
    status: StatusLine | None = None
    stragglers: StragglerWatch | None = None
    events: EventQueue = field(default_factory=EventQueue)
    begun: set[int] = field(default_factory=set)
    _unshown: collections.deque[tuple[int, str, str]] = field(default_factory=collections.deque)

    def __post_init__(self) -> None:
        _warn_about_copies()

    def report(self, text: str) -> None:
        """Print a line of the launcher's own on stderr."""
        if self.status is not None:
            self.status.hide()
        announce(text)

    def take_events(self) -> Iterator[Event | None]:
        """Yield each event once it is shown; None now and then, so that the caller can look at the time."""
        self._show_lines()  # left over if Ctrl-C interrupted the loop
        while True:
            try:
                event = self.events.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                if self.status is not None:
                    self.status.draw(self.begun)
                yield None
                continue
            self._show(event)
            if self.events.empty():
                flush()
                if self.status is not None:
                    self.status.draw(self.begun)
            yield event

    def _show(self, event: Event) -> None:
        if isinstance(event, ProgressReported) and self.stragglers is not None and event.progress.sample is not None:
            for line in self.stragglers.note(event.rank, event.progress.sample):
                self.report(line)
        if self.status is not None:
            if isinstance(event, ProgressReported):
                self.status.note(event.rank, event.progress)
            elif isinstance(event, (Lines, Message)) or self.show_begun is not None:
                self.status.hide()
        if isinstance(event, Lines):
            self._unshown.extend((event.rank, event.stream, text) for text in event.texts)
            self._show_lines()
        elif isinstance(event, Message):
            print_message(event.rank, event.text)
        elif isinstance(event, LauncherMessage):
            self.report(event.text)
        elif isinstance(event, RecordReceived) and self.take_record is not None:
            self.take_record(event.rank, event.record)
        elif isinstance(event, FilePiece) and self.files is not None:
            self.files.take(event)
        elif isinstance(event, Begun):
            self.begun.add(event.rank)
            if self.show_begun is not None:
                self.show_begun(event.rank, event.pid)

    def _show_lines(self) -> None:
        while self._unshown:
            self.show_line(*self._unshown.popleft())


@dataclass
class JobMonitor:
    """Follows one job from the launcher's main thread until all of its supervisors have ended.

    Attributes:
        stop: has all supervisors end their workers; must not block. May be called more than once.
        cancel: ends the job if `stop` has not ended it within two seconds; None: not available.
        display: shows the events of the job.
        size: number of ranks.
        waiting: called now and then until all ranks have begun, with the seconds since the start.
        clock: called now and then while nothing has failed; ends the job by raising.
        awaits_more: whether more will soon be known of the failures, so that the job is not ended yet.
        reports: failures so far.
    """

    stop: Callable[[str], None]
    cancel: Callable[[], None] | None = None
    display: EventDisplay = field(default_factory=EventDisplay)
    size: int = 1
    waiting: Callable[[float], None] | None = None
    clock: Callable[[], None] | None = None
    awaits_more: Callable[[], bool] | None = None
    reports: list[FailureReport] = field(default_factory=list)

    @remember_interruption()
    def follow(self) -> None:
        """Return when the job has ended on its own, or has been ended after a failure (see `reports`).

        Raises:
            BaseException: any interruption of the calling thread (Ctrl-C), or what `waiting` or `clock` raises, once
                the job has been ended.
        """
        finished = False
        started = time.monotonic()
        try:
            decide_at: float | None = None
            for event in self._take_events():
                if isinstance(event, Finished):
                    finished = True
                    return
                raise_lost_interruption()
                if isinstance(event, Failed):
                    decide_at = self._choose_decision_time(decide_at)
                is_due = decide_at is not None and time.monotonic() >= decide_at
                if is_due and not (self.awaits_more is not None and self.awaits_more()):
                    self.stop("after that")
                    finished = self._wait_for_the_end()
                    return
                if self.waiting is not None and len(self.display.begun) < self.size and not self.reports:
                    self.waiting(time.monotonic() - started)
                if self.clock is not None and not self.reports:
                    self.clock()
        except BaseException as error:
            if not finished:
                self.stop(_explain_stop(error))
                self._wait_for_the_end()
            raise
        finally:
            if self.display.status is not None:
                self.display.status.close()

    def _take_events(self) -> Iterator[Event | None]:
        for event in self.display.take_events():
            if isinstance(event, Failed):
                self.note(event.report)
            yield event

    def _choose_decision_time(self, before: float | None) -> float:
        """Return when to stop the job after one more report: soon if the cause is known, else later."""
        cause = find_first_failure(self.reports)
        is_cause_found = cause is not None and not cause.secondary
        at = time.monotonic() + (GRACE if is_cause_found else GRACE_WITHOUT_CAUSE).total_seconds()
        return at if before is None else min(before, at)

    def _wait_for_the_end(self) -> bool:
        """Wait for `Finished`, once more after `cancel` if there is one. Return whether it was received."""
        steps = [(None, CLEAN_UP)] if self.cancel is None else [(None, _BEFORE_CANCELLING), (self.cancel, CLEAN_UP)]
        for step, patience in steps:
            if step is not None:
                step()
            deadline = time.monotonic() + patience.total_seconds()
            for event in self._take_events():
                if isinstance(event, Finished):
                    return True
                if time.monotonic() >= deadline:
                    break
        return False

    def note(self, report: FailureReport) -> None:
        """Add a report, unless its rank already has one with more detail."""
        for index, existing in enumerate(self.reports):
            if existing.rank == report.rank >= 0:
                is_explained = existing.kind == report.kind == LOST and report.when <= existing.when
                if existing.kind == STOPPED != report.kind or is_explained:
                    self.reports[index] = report
                return
        self.reports.append(report)


@functools.cache  # once in a program
def _warn_about_copies() -> None:
    """Warn if a launcher such as mpirun runs several copies of this program, each of which starts the whole job."""
    switch = IGNORE_LAUNCHER_VARIABLE
    if Settings.read({switch: os.environ.get(switch, "")}).ignore_launcher:
        return
    job = find_foreign_job()
    if job is not None:
        _log.warning(
            "This program is %s. Each copy that gets here starts its own job, with the same folders and checkpoints. "
            "Start the program once, or set %s=1 to allow this.",
            job.process,
            switch,
        )


def _explain_stop(error: BaseException) -> str:
    if isinstance(error, (StartTimeoutError, JobTimeoutError)):
        return "because it timed out"
    if is_interruption(error) or not isinstance(error, Exception):
        return "because the launcher was interrupted"
    return f"because the launcher failed: {error!r}"


def put_finished_after(threads: list[threading.Thread], events: EventQueue) -> None:
    """Put `Finished` into `events` once all `threads` have ended."""

    def wait() -> None:
        for thread in threads:
            thread.join()
        events.put(Finished())

    threading.Thread(target=wait, name="spark_estimator end of job", daemon=True).start()
