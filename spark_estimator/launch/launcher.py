"""What every launcher does while a job runs: shows lines, gathers failures, ends the job after the first or Ctrl-C."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from spark_estimator.errors import JobTimeoutError, StartTimeoutError
from spark_estimator.launch.failures import STOPPED, FailureReport, first_failure
from spark_estimator.launch.outcome import Outcome
from spark_estimator.observe.driver_log import print_line, print_message

# After the first failure the others may have failed by themselves an instant earlier; let them say so.
GRACE = timedelta(seconds=0.3)
# A lost peer is never the cause: the report of the rank that was lost is on its way.
GRACE_WITHOUT_CAUSE = timedelta(seconds=1.5)
# Stopped ranks are gone within so long, or the launcher goes on without them.
CLEAN_UP = timedelta(seconds=5)
_SLICE_SECONDS = 0.1


@dataclass(frozen=True)
class Begun:
    """User code has begun on a rank."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Line:
    """A rank printed a line; stream is "stdout" or "stderr"."""

    rank: int
    stream: str
    text: str


@dataclass(frozen=True)
class Message:
    """A rank called `log_to_driver`."""

    rank: int
    text: str


@dataclass(frozen=True)
class Failed:
    """A rank has failed."""

    report: FailureReport


@dataclass(frozen=True)
class Told:
    """A process of an elastic job has sent its launcher a frame (``collectives.launcher_link``).

    Attributes:
        process: the number that the launcher gave it.
    """

    process: int
    frame: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A process of an elastic job, and all that it started, is gone.

    Attributes:
        process: the number that the launcher gave it.
        outcome: how it ended; None when it could not be watched, for the reason in `error`.
    """

    process: int
    outcome: Outcome | None
    error: BaseException | None = None


@dataclass(frozen=True)
class Finished:
    """Nothing more will come: all supervisors have ended."""


Event = Begun | Line | Message | Failed | Told | Ended | Finished


@dataclass
class Watch:
    """Follows one job from the launcher's main thread until nothing of it is left.

    Attributes:
        events: what the supervisors say, put there by other threads; bounded, so that a rank that prints faster than
            the launcher can is slowed down and fills no memory.
        stop: has all supervisors end their workers; must not block. May be called more than once.
        cancel: the harder way, when `stop` has not helped within `CLEAN_UP`; None when there is none.
        show_line: prints a line.
        show_begun: called with rank and process once user code has begun on a rank.
        size: number of ranks.
        waiting: called now and then until all ranks have begun, with the seconds since the start.
        clock: called now and then while nothing has failed; ends the job by raising.
        reports: failures so far.
    """

    stop: Callable[[str], None]
    cancel: Callable[[], None] | None = None
    show_line: Callable[[int, str, str], None] = print_line
    show_message: Callable[[int, str], None] = print_message
    show_begun: Callable[[int, int], None] | None = None
    size: int = 1
    waiting: Callable[[float], None] | None = None
    clock: Callable[[], None] | None = None
    events: queue.Queue[Event] = field(default_factory=lambda: queue.Queue(maxsize=10_000))
    reports: list[FailureReport] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)

    def follow(self) -> None:
        """Returns when the job has ended by itself, or has been ended after a failure (see `reports`).

        Raises:
            BaseException: whatever interrupts the calling thread (Ctrl-C), or what `waiting` or `clock` raises, once
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
                if isinstance(event, Failed):
                    decide_at = self._decision_time(decide_at)
                if decide_at is not None and time.monotonic() >= decide_at:
                    self.stop("after that")
                    finished = self.wait_for_the_end()
                    return
                if self.waiting is not None and len(self.begun) < self.size and not self.reports:
                    self.waiting(time.monotonic() - started)
                if self.clock is not None and not self.reports:
                    self.clock()
        except BaseException as error:
            if not finished:
                late = isinstance(error, (StartTimeoutError, JobTimeoutError))
                self.stop("because its time was over" if late else "because the launcher was interrupted")
                self.wait_for_the_end()
            raise

    def _decision_time(self, before: float | None) -> float:
        """When to stop the job, now that one more report is here: soon when the cause is known, else later."""
        cause = first_failure(self.reports)
        known = cause is not None and not cause.secondary
        at = time.monotonic() + (GRACE if known else GRACE_WITHOUT_CAUSE).total_seconds()
        return at if before is None else min(before, at)

    def wait_for_the_end(self) -> bool:
        """Waits for `Finished`; after `CLEAN_UP` once more with `cancel`. False when it did not come at all."""
        for step in (None, self.cancel):
            if step is not None:
                step()
            deadline = time.monotonic() + CLEAN_UP.total_seconds()
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
        while True:
            try:
                event = self.events.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                yield None
                continue
            if isinstance(event, Line):
                self.show_line(event.rank, event.stream, event.text)
            elif isinstance(event, Message):
                self.show_message(event.rank, event.text)
            elif isinstance(event, Begun):
                self.begun.add(event.rank)
                if self.show_begun is not None:
                    self.show_begun(event.rank, event.pid)
            elif isinstance(event, Failed):
                self.note(event.report)
            if self.events.empty():
                sys.stdout.flush()
            yield event

    def note(self, report: FailureReport) -> None:
        """Adds a report, unless its rank has one that says more."""
        for index, known in enumerate(self.reports):
            if known.rank == report.rank >= 0:
                if known.kind == STOPPED != report.kind:
                    self.reports[index] = report
                return
        self.reports.append(report)


class EventRelay:
    """A supervisor's `Relay` into the queue of a `Watch` in the same process."""

    def __init__(self, events: queue.Queue[Event]) -> None:
        self._events = events

    def begun(self, rank: int, pid: int) -> None:
        """User code begins."""
        self._events.put(Begun(rank, pid))

    def line(self, rank: int, stream: str, text: str) -> None:
        """A line of "stdout" or "stderr"."""
        self._events.put(Line(rank, stream, text))

    def log(self, rank: int, message: str) -> None:
        """A message for the person at the driver."""
        self._events.put(Message(rank, message))

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
