"""Several ways to do the same, timed in turns within one process. Spark's workers import it: it needs nothing heavy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_estimator.benchmarks.interleaved import BenchmarkError

_TOLERANCE = 1e-3


@dataclass
class Way:
    """One way to do the same.

    Attributes:
        name: for the table.
        rows: that `run` works on.
        run: does it once, and returns a number by which it is checked: a mean over the rows.
        seconds: one for each round.
    """

    name: str
    rows: int
    run: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows in a second."""
        return self.rows / statistics.median(self.seconds)


def in_turns(ways: Sequence[Way], rounds: int) -> None:
    """Runs all ways, again and again; the first time counts as warm-up.

    Raises:
        BenchmarkError: a way has another result than the first.
    """
    for number in range(rounds + 1):
        results = []
        for way in ways:
            started = time.perf_counter()
            results.append(way.run())
            if number:
                way.seconds.append(time.perf_counter() - started)
        for way, result in zip(ways, results, strict=True):
            if abs(result - results[0]) > _TOLERANCE * max(1.0, abs(results[0])):
                raise BenchmarkError(f"{way.name} gave {result}, and {ways[0].name} {results[0]}")
