"""Converts the records of a training to MLflow's metrics: a value for each number of an epoch, or of some steps."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# MLflow refuses other characters in a metric's name, which a user may have chosen.
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)
# Steps for which the records of some ranks are missing.
_MOST_PENDING = 1000

#: An epoch's entry of a history, as one flat dict of numbers.
Flattened = Callable[[Mapping[str, Any]], Mapping[str, float]]


@dataclass(frozen=True)
class MetricValue:
    """One value of a metric."""

    name: str
    value: float
    step: int  # of the horizontal axis: the epoch, or the number of the step since the training began


class MetricQueue:
    """Values that wait to be sent, each with its time in milliseconds since 1970. Any thread adds, and one sends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: list[tuple[MetricValue, int]] = []
        self._is_sent = False

    def add(self, values: Iterable[MetricValue]) -> bool:
        """Add values of this moment. Return whether the caller has to send them: values wait, and none are sent."""
        now = int(time.time() * 1000)
        with self._lock:
            self._values += [(value, now) for value in values]
            is_new = bool(self._values) and not self._is_sent
            self._is_sent = self._is_sent or is_new
            return is_new

    def peek(self, most: int) -> list[tuple[MetricValue, int]]:
        """Return the first values, at most this many. After none, the sender has ended."""
        with self._lock:
            self._is_sent = bool(self._values)
            return self._values[:most]

    def remove(self, count: int) -> None:
        """Remove the first values."""
        with self._lock:
            del self._values[:count]


class RecordedMetrics:
    """The metrics of one training.

    Args:
        flattened: of the framework's history.
        loss: the name of the training loss in it.
    """

    def __init__(self, flattened: Flattened, loss: str) -> None:
        self._flattened = flattened
        self._step_name = f"{loss}_step"
        self._epochs: set[int] = set()
        self._pending: dict[tuple[int, int], dict[int, tuple[float, int]]] = {}
        self._samples: dict[int, int] = {}

    def convert_record(self, rank: int, record: Mapping[str, Any]) -> list[MetricValue]:
        """Return the values that a record completes.

        Raises:
            KeyError, TypeError, ValueError: it is no record.
        """
        if "entry" in record:
            return self.convert_epochs([record["entry"]])
        if "system" in record:
            return self._convert_sample(rank, record["system"])
        epoch, step, steps = int(record["epoch"]), int(record["step"]), int(record["steps"])
        of_ranks = self._pending.setdefault((epoch, step), {})
        of_ranks[rank] = float(record["loss"]), int(record["rows"])
        if len(of_ranks) < int(record["ranks"]):
            while len(self._pending) > _MOST_PENDING:
                del self._pending[next(iter(self._pending))]
            return []
        del self._pending[epoch, step]
        rows = sum(count for _, count in of_ranks.values())
        if not rows:
            return []
        # The same sum, in any order of the ranks' records.
        loss = math.fsum(of_ranks[number][0] for number in sorted(of_ranks)) / rows
        return [MetricValue(self._step_name, loss, epoch * steps + step)]

    def _convert_sample(self, rank: int, sample: Mapping[str, Any]) -> list[MetricValue]:
        """Return the values of a sample of a rank's host, by MLflow's names; the steps count the samples of the
        rank.
        """
        step = self._samples.get(rank, 0)
        self._samples[rank] = step + 1
        return [MetricValue(f"system/rank_{rank}/{name}", float(value), step) for name, value in sample.items()]

    def convert_epochs(self, entries: Iterable[Mapping[str, Any]]) -> list[MetricValue]:
        """Return the values of those entries of a history whose epochs are new."""
        values = []
        for entry in entries:
            epoch = int(entry["epoch"])
            if epoch in self._epochs:
                continue
            self._epochs.add(epoch)
            values += [
                MetricValue(_NOT_IN_NAMES.sub("_", name), float(value), epoch)
                for name, value in self._flattened(entry).items()
                if name != "epoch" and isinstance(value, (int, float))
            ]
        return values
