"""Collects the facts of all supervisors at the driver, so that ranks can be assigned.

Spark's own exchange, ``BarrierTaskContext.allGather``, asks once a second whether all have answered. Over the driver
channel the same takes some milliseconds. The driver decides for all, and once:

1. All facts have come: each supervisor is given all of them.
2. Some are still missing `PATIENCE` after the first came: those that have registered are sent to Spark's exchange, as
   are all that come later. A supervisor that cannot reach the driver in time goes there by itself, waits there for
   the others, and reports it if it reaches the driver later. So either all use the driver's answer, or all use Spark's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from spark_estimator.log import logger
from spark_estimator.observe import frames

# Executors that start for this job may take seconds longer than others; those that cannot reach the driver never come.
PATIENCE = timedelta(seconds=10)
# What one supervisor must be told has to fit in a frame.
_MOST_BYTES = frames.MAX_FRAME_BYTES * 3 // 4

_log = logger(__name__)


class RankRegistration:
    """The facts of one job's supervisors.

    Args:
        size: number of supervisors; their partitions are 0 to size - 1.
        send: is given (partition, kind of frame, its fields); must not block.
    """

    def __init__(self, size: int, send: Callable[[int, str, dict[str, Any]], None]) -> None:
        self._size = size
        self._send = send
        self._lock = threading.Lock()
        self._facts: dict[int, str] = {}
        self._first: float | None = None  # when the first came
        self._decided = False

    def add(self, partition: int, facts: str) -> None:
        """One supervisor has told its facts. When they are the last, all are answered."""
        with self._lock:
            if self._decided:
                self._send(partition, frames.GATHER, {})  # its task was started again: Spark knows with whom
                return
            self._facts[partition] = facts
            if self._first is None:
                self._first = time.monotonic()
            if len(self._facts) == self._size:
                everyone = [self._facts[number] for number in range(self._size)]
                if sum(map(len, everyone)) > _MOST_BYTES:
                    self._send_to_spark("they are too many for one message")
                else:
                    self._answer(frames.EVERYONE, {"facts": everyone})

    def look_at_the_clock(self) -> None:
        """To be called now and then: gives up when the facts that are missing have been waited for long enough."""
        with self._lock:
            if self._first is None or self._decided:
                return
            if time.monotonic() - self._first >= PATIENCE.total_seconds():
                missing = [str(number) for number in range(self._size) if number not in self._facts]
                self._send_to_spark(f"partitions {', '.join(missing)} haven't sent theirs to the driver")

    def give_up(self, reason: str) -> None:
        """Sends all to Spark's exchange: the facts of one will not come."""
        with self._lock:
            if not self._decided:
                self._send_to_spark(reason)

    def _send_to_spark(self, reason: str) -> None:
        _log.info("supervisors exchange their addresses through Spark, which takes a second longer: %s", reason)
        self._answer(frames.GATHER, {})

    def _answer(self, kind: str, fields: dict[str, Any]) -> None:
        self._decided = True
        for partition in self._facts:
            self._send(partition, kind, fields)
