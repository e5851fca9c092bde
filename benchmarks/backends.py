"""Times several implementations of a task, interleaved in one process. Spark's workers import this small module."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.interleaved import BenchmarkError

_TOLERANCE = 1e-3


@dataclass
class Backend:
    """An implementation of a task over rows.

    Attributes:
        name: for the table.
        rows: number of rows that `run` processes.
        run: performs the task once, and returns a mean over the rows, with which the result is checked.
        seconds: duration of each timed round.
    """

    name: str
    rows: int
    run: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows per second, the median over rounds."""
        return self.rows / statistics.median(self.seconds)


def time_interleaved(backends: Sequence[Backend], rounds: int) -> None:
    """Runs all backends once in each round; after one untimed warm-up round.

    Raises:
        BenchmarkError: the result of a backend differs from that of the first backend.
    """
    for number in range(rounds + 1):
        results = []
        for backend in backends:
            started = time.perf_counter()
            results.append(backend.run())
            if number:
                backend.seconds.append(time.perf_counter() - started)
        for backend, result in zip(backends, results, strict=True):
            if abs(result - results[0]) > _TOLERANCE * max(1.0, abs(results[0])):
                raise BenchmarkError(f"{backend.name} returned {result}, but {backends[0].name} returned {results[0]}")
