"""Monitors a running job, for every launcher: shows lines, gathers failures, ends the job after the first or Ctrl-C."""

from __future__ import annotations

import collections
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.other_launchers.launchers import foreign_job
from spark_estimator.env import IGNORE_LAUNCHER_VARIABLE, Settings
from spark_estimator.errors import JobTimeoutError, StartTimeoutError
from spark_estimator.launch.job.failures import LOST, STOPPED, FailureReport, first_failure
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.interruption import is_interruption, raise_lost_interruption, remembered_interruption
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.log import logger
from spark_estimator.observe.driver_log import announce, flush, print_line, print_message
from spark_estimator.observe.progress import Progress
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.observe.training_records import TakeRecord

_log = logger(__name__)

# Another rank may have failed on its own an instant before the first report: wait for its report.
GRACE = timedelta(seconds=0.3)
# A lost peer is never the cause: wait for the report of the rank that was lost.
GRACE_WITHOUT_CAUSE = timedelta(seconds=1.5)
# How long to wait for the end of stopped ranks before the launcher continues without them.
CLEAN_UP = timedelta(seconds=5)
# The same before `cancel`, if there is one: a rank that is still starting does not receive a stop.
_BEFORE_CANCELLING = timedelta(seconds=2)
_SLICE_SECONDS = 0.1
_MOST_EVENT_BYTES = 64_000_000
_UNIT_BYTES = 64_000


@dataclass(frozen=True)
class Begun:
    """User code has begun on a rank."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Lines:
    """A rank printed lines, received together; stream is "stdout" or "stderr"."""

    rank: int
    stream: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Message:
    """A rank called `log_to_driver`."""

    rank: int
    text: str


@dataclass(frozen=True)
class LauncherMessage:
    """A message of the launcher itself."""

    text: str


@dataclass(frozen=True)
class ProgressReported:
    """A rank has reported its progress."""

    rank: int
    progress: Progress


@dataclass(frozen=True)
class RecordReceived:
    """A rank has sent a record of an estimator's training."""

    rank: int
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """A rank has failed."""

    report: FailureReport


@dataclass(frozen=True)
class FrameReceived:
    """A process of an elastic job has sent its launcher a frame (``collectives.launcher_link``).

    Attributes:
        process: its number at the launcher.
    """

    process: int
    frame: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A process of an elastic job, and all that it started, has ended.

    Attributes:
        process: its number at the launcher.
        outcome: how it ended; None if it could not be supervised, for the reason in `error`.
    """

    process: int
    outcome: Outcome | None
    error: BaseException | None = None


@dataclass(frozen=True)
class Offered:
    """From now on these are all the hosts on which processes of an elastic job may run."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Finished:
    """The last event: all supervisors have ended."""


Event = (
    Begun
    | Lines
    | Message
    | LauncherMessage
    | ProgressReported
    | RecordReceived
    | Failed
    | FrameReceived
    | Ended
    | Offered
    | Finished
)


class EventQueue(queue.Queue[Event]):
    """Events for the launcher's main thread, at most a thousand and `_MOST_EVENT_BYTES`.

    A thread that adds more waits, so that a rank that prints faster than the launcher is slowed down and does not fill
    the memory. `qsize` counts an event as one, and once more for each `_UNIT_BYTES` that it has.
    """

    def __init__(self) -> None:
        self._weights: collections.deque[int] = collections.deque()
        self._weight = 0
        super().__init__(_MOST_EVENT_BYTES // _UNIT_BYTES)

    def _qsize(self) -> int:
        return self._weight

    def _put(self, item: Event) -> None:
        weight = 1 + _size_of(item) // _UNIT_BYTES
        self._weights.append(weight)
        self._weight += weight
        super()._put(item)

    def _get(self) -> Event:
        self._weight -= self._weights.popleft()
        return super()._get()


def _size_of(event: Event) -> int:
    """About how many bytes an event has."""
    if isinstance(event, Lines):
        return sum(map(len, event.texts))
    if isinstance(event, (Message, LauncherMessage)):
        return len(event.text)
    if isinstance(event, Failed):
        return len(event.report.message) + len(event.report.traceback) + len(event.report.log_tail)
    if isinstance(event, FrameReceived):
        return sum(len(str(value)) for value in event.frame.values())
    return 0


@dataclass
class JobMonitor:
    """Follows one job from the launcher's main thread until all of its supervisors have ended.

    Attributes:
        events: reports of the supervisors, added by other threads.
        stop: has all supervisors end their workers; must not block. May be called more than once.
        cancel: ends the job if `stop` has not ended it within two seconds; None: not available.
        show_line: prints a line.
        show_begun: called with rank and process once user code has begun on a rank.
        take_record: receives each record of an estimator's training; None: they are dropped.
        size: number of ranks.
        waiting: called now and then until all ranks have begun, with the seconds since the start.
        clock: called now and then while nothing has failed; ends the job by raising.
        awaits_more: whether more will soon be known of the failures, so that the job is not ended yet.
        status: the line that shows the progress of the job; None: it is not shown.
        reports: failures so far.
    """

    stop: Callable[[str], None]
    cancel: Callable[[], None] | None = None
    show_line: Callable[[int, str, str], None] = print_line
    show_message: Callable[[int, str], None] = print_message
    show_begun: Callable[[int, int], None] | None = None
    take_record: TakeRecord | None = None
    size: int = 1
    waiting: Callable[[float], None] | None = None
    clock: Callable[[], None] | None = None
    awaits_more: Callable[[], bool] | None = None
    status: StatusLine | None = None
    events: EventQueue = field(default_factory=EventQueue)
    reports: list[FailureReport] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    _unshown: collections.deque[str] = field(default_factory=collections.deque)
    _unshown_of: tuple[int, str] = (-1, "stdout")

    def __post_init__(self) -> None:
        _warn_of_copies()

    @remembered_interruption()
    def follow(self) -> None:
        """Returns when the job has ended on its own, or has been ended after a failure (see `reports`).

        Raises:
            BaseException: any interruption of the calling thread (Ctrl-C), or what `waiting` or `clock` raises, once
                the job has been ended.
        """
        finished = False
        started = time.monotonic()
        try:
            decide_at: float | None = None
            for event in self.shown():
                if isinstance(event, Finished):
                    finished = True
                    return
                raise_lost_interruption()
                if isinstance(event, Failed):
                    decide_at = self._decision_time(decide_at)
                is_due = decide_at is not None and time.monotonic() >= decide_at
                if is_due and not (self.awaits_more is not None and self.awaits_more()):
                    self.stop("after that")
                    finished = self.wait_for_the_end()
                    return
                if self.waiting is not None and len(self.begun) < self.size and not self.reports:
                    self.waiting(time.monotonic() - started)
                if self.clock is not None and not self.reports:
                    self.clock()
        except BaseException as error:
            if not finished:
                self.stop(_reason_to_stop(error))
                self.wait_for_the_end()
            raise
        finally:
            if self.status is not None:
                self.status.close()

    def report(self, text: str) -> None:
        """Prints a line of the launcher's own on stderr."""
        if self.status is not None:
            self.status.hide()
        announce(text)

    def _decision_time(self, before: float | None) -> float:
        """When to stop the job, now that one more report is here: soon when the cause is known, else later."""
        cause = first_failure(self.reports)
        known = cause is not None and not cause.secondary
        at = time.monotonic() + (GRACE if known else GRACE_WITHOUT_CAUSE).total_seconds()
        return at if before is None else min(before, at)

    def wait_for_the_end(self) -> bool:
        """Waits for `Finished`, once more after `cancel` if there is one. False if it was not received."""
        for step in (None, self.cancel):
            if step is not None:
                step()
            patience = CLEAN_UP if step is not None or self.cancel is None else _BEFORE_CANCELLING
            deadline = time.monotonic() + patience.total_seconds()
            for event in self.shown():
                if isinstance(event, Finished):
                    return True
                if time.monotonic() >= deadline:
                    break
            if self.cancel is None:
                break
        return False

    def shown(self) -> Iterator[Event | None]:
        """Yields each event once it is shown or noted; None now and then, so that the caller can look at the time."""
        self._show_lines(*self._unshown_of)  # left over if Ctrl-C interrupted the loop
        while True:
            try:
                event = self.events.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                if self.status is not None:
                    self.status.draw(self.begun)
                yield None
                continue
            if self.status is not None:
                if isinstance(event, ProgressReported):
                    self.status.note(event.rank, event.progress)
                elif isinstance(event, (Lines, Message)) or self.show_begun is not None:
                    self.status.hide()
            if isinstance(event, Lines):
                self._unshown.extend(event.texts)
                self._show_lines(event.rank, event.stream)
            elif isinstance(event, Message):
                self.show_message(event.rank, event.text)
            elif isinstance(event, LauncherMessage):
                self.report(event.text)
            elif isinstance(event, RecordReceived) and self.take_record is not None:
                self.take_record(event.rank, event.record)
            elif isinstance(event, Begun):
                self.begun.add(event.rank)
                if self.show_begun is not None:
                    self.show_begun(event.rank, event.pid)
            elif isinstance(event, Failed):
                self.note(event.report)
            if self.events.empty():
                flush()
                if self.status is not None:
                    self.status.draw(self.begun)
            yield event

    def _show_lines(self, rank: int, stream: str) -> None:
        """Shows the remaining lines of the last event."""
        self._unshown_of = rank, stream
        while self._unshown:
            self.show_line(rank, stream, self._unshown.popleft())

    def note(self, report: FailureReport) -> None:
        """Adds a report, unless its rank already has one with more detail."""
        for index, known in enumerate(self.reports):
            if known.rank == report.rank >= 0:
                is_explained = known.kind == report.kind == LOST and report.when <= known.when
                if known.kind == STOPPED != report.kind or is_explained:
                    self.reports[index] = report
                return
        self.reports.append(report)


@functools.cache  # once in a program
def _warn_of_copies() -> None:
    """Warns if a launcher such as mpirun runs several copies of this program, each of which starts the whole job."""
    switch = IGNORE_LAUNCHER_VARIABLE
    if Settings.read({switch: os.environ.get(switch, "")}).ignore_launcher:
        return
    job = foreign_job()
    if job is not None:
        _log.warning(
            "This program is %s. Each copy that gets here starts its own job, with the same folders and checkpoints. "
            "Start the program once, or set %s=1 to allow this.",
            job.process,
            switch,
        )


def _reason_to_stop(error: BaseException) -> str:
    if isinstance(error, (StartTimeoutError, JobTimeoutError)):
        return "because it timed out"
    if is_interruption(error) or not isinstance(error, Exception):
        return "because the launcher was interrupted"
    return f"because the launcher failed: {error!r}"


class EventRelay:
    """A supervisor's `Relay` into the queue of a `JobMonitor` in the same process."""

    def __init__(self, events: queue.Queue[Event]) -> None:
        self._events = events

    def begun(self, rank: int, pid: int) -> None:
        """User code begins."""
        self._events.put(Begun(rank, pid))

    def lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        """Lines of "stdout" or "stderr" that were received together."""
        self._events.put(Lines(rank, stream, texts))

    def log(self, rank: int, message: str) -> None:
        """A message for the person at the driver."""
        self._events.put(Message(rank, message))

    def progress(self, rank: int, progress: Progress) -> None:
        """How far the rank is."""
        self._events.put(ProgressReported(rank, progress))

    def record(self, rank: int, record: Mapping[str, Any]) -> None:
        """A record of an estimator's training."""
        self._events.put(RecordReceived(rank, record))

    def failed(self, report: FailureReport) -> None:
        """The rank has failed."""
        self._events.put(Failed(report))


def say_when_done(threads: list[threading.Thread], events: queue.Queue[Event]) -> None:
    """Puts `Finished` into `events` once all `threads` have ended."""

    def wait() -> None:
        for thread in threads:
            thread.join()
        events.put(Finished())

    threading.Thread(target=wait, name="spark_estimator end of job", daemon=True).start()
