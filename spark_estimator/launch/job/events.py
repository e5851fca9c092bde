"""Events of a running job, which its supervisors report to the launcher, and the queue in which they wait."""

from __future__ import annotations

import collections
import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.observe.progress import Progress

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
class FilePiece:
    """A piece of a rank's file, as `rank_files` packs it; empty: the file is complete."""

    rank: int
    name: str
    content: str


@dataclass(frozen=True)
class Failed:
    """A rank has failed."""

    report: FailureReport


@dataclass(frozen=True)
class FrameReceived:
    """A process of an elastic job, by its number, has sent its launcher a frame (``collectives.launcher_link``)."""

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
    | FilePiece
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
    if isinstance(event, FilePiece):
        return len(event.content)
    if isinstance(event, FrameReceived):
        return sum(len(str(value)) for value in event.frame.values())
    return 0


class EventRelay:
    """A supervisor's `Relay` into the queue of a `JobMonitor` in the same process."""

    def __init__(self, events: queue.Queue[Event]) -> None:
        self._events = events

    def note_begin(self, rank: int, pid: int) -> None:
        self._events.put(Begun(rank, pid))

    def pass_lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        self._events.put(Lines(rank, stream, texts))

    def log(self, rank: int, message: str) -> None:
        self._events.put(Message(rank, message))

    def note_progress(self, rank: int, progress: Progress) -> None:
        self._events.put(ProgressReported(rank, progress))

    def record(self, rank: int, record: Mapping[str, Any]) -> None:
        self._events.put(RecordReceived(rank, record))

    def pass_file(self, rank: int, name: str, piece: str) -> bool:
        self._events.put(FilePiece(rank, name, piece))
        return True

    def note_failure(self, report: FailureReport) -> None:
        self._events.put(Failed(report))
