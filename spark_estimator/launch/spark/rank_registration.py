"""Collects the facts of all supervisors at the driver, so that ranks can be assigned.

In a barrier stage all supervisors run at the same time. Spark's own exchange, ``BarrierTaskContext.allGather``, asks
once a second whether all have answered. Over the driver channel the same takes some milliseconds. The driver decides
for all, and once:

1. All facts have arrived: each supervisor gets all of them.
2. Some are still missing `PATIENCE` after the first arrived: the driver sends those that have registered to Spark's
   exchange, and all that register later. A supervisor that cannot reach the driver in time uses Spark's exchange
   unasked, waits there for the others, and reports it if it reaches the driver later. So either all use the driver's
   answer, or all use Spark's.

In another stage the supervisors start as Spark finds slots for them, the last one perhaps much later than the first,
and there is no other exchange (`DriverRegistration`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from spark_estimator.errors import AuthenticationError
from spark_estimator.log import get_logger
from spark_estimator.observe import frames

# Executors that start for this job may take seconds longer than others; those that cannot reach the driver never
# register.
PATIENCE = timedelta(seconds=10)
# All facts must fit into one frame to a supervisor.
_MOST_BYTES = frames.MAX_FRAME_BYTES * 3 // 4
# After the end of the last rank: how long Spark may take to fetch their results and end all copies of their tasks.
RESULTS_ARE_THERE = timedelta(minutes=1)

_log = get_logger(__name__)

Send = Callable[[int, str, dict[str, Any]], None]


class RankRegistration:
    """The facts of one job's supervisors, in a barrier stage.

    Args:
        size: number of supervisors; their partitions are 0 to size - 1.
        send: called with (partition, kind of frame, its fields); must not block.
    """

    def __init__(self, size: int, send: Send) -> None:
        self._size = size
        self._send = send
        self._lock = threading.Lock()
        self._facts: dict[int, str] = {}
        self._first: float | None = None  # when the first arrived
        self._decided = False

    def add(self, partition: int, facts: str) -> None:
        """Register one supervisor's facts. If they are the last, all supervisors get an answer."""
        with self._lock:
            if self._decided:
                self._send(partition, frames.GATHER, {})  # its task was started again: Spark knows with whom
                return
            self._facts[partition] = facts
            if self._first is None:
                self._first = time.monotonic()
            if len(self._facts) == self._size:
                self._decided = True
                send_to_all([self._facts[number] for number in range(self._size)], self._send)

    def expire(self) -> None:
        """Give up once the missing facts have been waited for long enough. Called now and then."""
        with self._lock:
            if self._first is None or self._decided:
                return
            if time.monotonic() - self._first >= PATIENCE.total_seconds():
                missing = [str(number) for number in range(self._size) if number not in self._facts]
                self._send_to_spark(f"partitions {', '.join(missing)} haven't sent theirs to the driver")

    def give_up(self, reason: str) -> None:
        """Send all to Spark's exchange: one supervisor will not register here."""
        with self._lock:
            if not self._decided:
                self._send_to_spark(reason)

    def approve(self, partition: int) -> None:
        """Approve all: Spark starts no task of a barrier stage alone."""

    def remove(self, partition: int) -> bool:
        """Return False: all tasks run, so that each loss ends the job."""
        return False

    def find_repeated(self, connected: int) -> list[int]:
        """Return no partitions: Spark ends a barrier stage that loses a result."""
        return []

    def _send_to_spark(self, reason: str) -> None:
        _log.info("supervisors exchange their addresses through Spark, which takes a second longer: %s", reason)
        self._decided = True
        for partition in self._facts:
            self._send(partition, frames.GATHER, {})


class DriverRegistration:
    """The facts of one job's supervisors, in a stage whose tasks start one by one.

    Until the last is there, nothing runs on any: one that is lost is no loss, as Spark starts its task again. After
    that no supervisor is admitted, since it would run a rank for the second time. That of a copy of a slow task asks
    again until Spark ends it. That of a task whose result Spark has lost would ask for ever: `find_repeated` names it.

    Args:
        As for `RankRegistration`.
    """

    def __init__(self, size: int, send: Send) -> None:
        self._size = size
        self._send = send
        self._lock = threading.Lock()
        self._facts: dict[int, str] = {}
        self._complete = False
        self._refused: dict[int, float] = {}  # partition -> when its last attempt was refused after that
        self._no_rank_since: float | None = None

    def approve(self, partition: int) -> None:
        """Approve a supervisor that wants to connect. Raises AuthenticationError: it is one more than expected."""
        with self._lock:
            if self._complete:
                self._refused[partition] = time.monotonic()
                raise AuthenticationError(f"the ranks run; partition {partition} is started once more")

    def add(self, partition: int, facts: str) -> None:
        """Register one supervisor's facts. If they are the last, all supervisors get an answer."""
        with self._lock:
            self._facts[partition] = facts
            if len(self._facts) == self._size and not self._complete:
                self._complete = True
                send_to_all([self._facts[number] for number in range(self._size)], self._send)

    def remove(self, partition: int) -> bool:
        """Remove a supervisor that has disconnected. Return whether the job can do without: as long as no rank runs."""
        with self._lock:
            if self._complete:
                return False
            self._facts.pop(partition, None)
            return True

    def expire(self) -> None:
        """As in `RankRegistration`: another class decides how long to wait."""

    def give_up(self, reason: str) -> None:
        """Do nothing; no supervisor asks for it."""

    def find_repeated(self, connected: int) -> list[int]:
        """Return the partitions that Spark runs again with all ranks ended, and none connected: results were lost."""
        now = time.monotonic()
        with self._lock:
            if connected or not self._complete:
                self._no_rank_since = None
                return []
            if self._no_rank_since is None:
                self._no_rank_since = now
            if now - self._no_rank_since < RESULTS_ARE_THERE.total_seconds():
                return []
            recent = RESULTS_ARE_THERE.total_seconds() / 2
            return [partition for partition, when in self._refused.items() if now - when < recent]


def send_to_all(facts: list[str], send: Send) -> None:
    """Send all supervisors the facts of all, by partition."""
    parts: list[list[str]] = [[]]
    length = 0
    for text in facts:
        length += len(text)
        if length > _MOST_BYTES and parts[-1]:
            parts.append([])
            length = len(text)
        parts[-1].append(text)
    for partition in range(len(facts)):
        for part in parts:
            send(partition, frames.EVERYONE, {"facts": part})
