"""The order in which ranks read rows that do not fit into memory, and the rest of an epoch; pure arithmetic.

*Pieces* (row groups) are one sequence of rows, of which each rank has an equal contiguous part
(`shares.divide_ranges`). In an epoch a rank takes the ranges of its part in a random order, several of them
at the same time: a *bundle*. A bundle is cut into windows, each with as many rows of each range, so that a
window has rows from `Mixing.streams` row groups (the last bundle may have fewer). Within a window all rows
are in random order. So rows of distant files are in one batch, which is drawn from `Mixing.window_rows` rows.
An epoch's first windows have fewer, so that the first one is soon read.

A *leg* is a part of an epoch that the same ranks have read. The legs determine which rows are left, for any
number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from spark_estimator.data.fields import Array
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.prefetch import shuffle_numbers
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.stream.limits import Mixing

#: Seed and epoch, which name an order; None: rows are read as they are stored.
Order = tuple[int, int] | None


@dataclass(frozen=True)
class Window:
    """Rows that are in memory together.

    Attributes:
        number: in the rank's epoch, from 0.
        start: rows of the rank before it.
        parts: (range of the rank's stretch, its number; the rows of it that are here), one after the other.
    """

    number: int
    start: int
    parts: tuple[tuple[int, Range], ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(part.rows for _, part in self.parts)

    def draw_order(self, order: Order, rank: int) -> Array:
        """Return [rows] the numbers of the window's rows in the order in which they are read."""
        numbers = numpy.arange(self.rows)
        return numbers if order is None else shuffle_numbers(numbers, (*order, rank, self.number))


def make_windows(ranges: Sequence[Range], mixing: Mixing, order: Order, rank: int) -> Iterator[Window]:
    """Yield the windows of a rank's epoch, one after the other.

    Args:
        ranges: of the rank's stretch.
    """
    if order is None:  # a window of several ranges has all of their rows, one range after the other
        numbers, mixing = range(len(ranges)), Mixing(mixing.window_rows, 1, mixing.window_rows)
    else:
        numbers = shuffle_numbers(numpy.arange(len(ranges)), (*order, rank)).tolist()
    number = start = 0
    most_rows = mixing.first_rows
    for bundle in _make_bundles(numbers, ranges, mixing):
        rows = sum(ranges[each].rows for each in bundle)
        # Of each range a window has the same part, to one row.
        spare = len(bundle) - 1 if rows > most_rows else 0
        count = -(-rows // max(1, most_rows - spare))
        place = 0
        while place < count:
            stop = place + max(1, (most_rows - spare) * count // rows)
            parts = []
            for each in bundle:
                whole = ranges[each]
                first = whole.rows * place // count
                size = whole.rows * min(stop, count) // count - first
                if size:
                    parts.append((each, Range(whole.piece, whole.start + first, size)))
            place, most_rows = stop, min(2 * most_rows, mixing.window_rows)
            if parts:
                window = Window(number, start, tuple(parts))
                yield window
                number, start = number + 1, start + window.rows


def _make_bundles(numbers: Sequence[int], ranges: Sequence[Range], mixing: Mixing) -> Iterator[list[int]]:
    """Yield ranges that are read together: as many as `Mixing.streams`, or more if all of them fit into a window."""
    bundle: list[int] = []
    rows = 0
    for number in numbers:
        if len(bundle) >= mixing.streams and rows + ranges[number].rows > mixing.window_rows:
            yield bundle
            bundle, rows = [], 0
        bundle.append(number)
        rows += ranges[number].rows
    if bundle:
        yield bundle


@dataclass(frozen=True)
class StreamLeg:
    """Steps of one epoch.

    Attributes:
        ranks: that read them.
        batch_size: the most rows of a batch.
        mixing: of the windows.
        steps: that were done.
    """

    ranks: int
    batch_size: int
    mixing: Mixing
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "ranks": self.ranks,
            "batch_size": self.batch_size,
            "window_rows": self.mixing.window_rows,
            "streams": self.mixing.streams,
            "first_rows": self.mixing.first_rows,
            "steps": self.steps,
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> StreamLeg:
        """Return the leg that `to_dict` made values of.

        Raises:
            ValueError: it is of rows that are not streamed.
        """
        if "window_rows" not in values:
            raise ValueError(
                "the state is of a loader that keeps all rows on disk, and this one reads them in each epoch "
                "(cache_bytes): their orders differ. Take it up at the end of an epoch, or with the same limits."
            )
        mixing = Mixing(*(int(values[name]) for name in ("window_rows", "streams", "first_rows")))
        return StreamLeg(int(values["ranks"]), int(values["batch_size"]), mixing, int(values["steps"]))


def find_remaining(counts: Sequence[int], legs: Sequence[StreamLeg], order: Order) -> list[Array | None]:
    """Return [pieces] the numbers of the rows that the legs, one after the other, have not read; None: all are left.

    Args:
        counts: [pieces] rows of each.
    """
    left: list[Array | None] = [None] * len(counts)
    for leg in legs:
        rows = [count if numbers is None else len(numbers) for count, numbers in zip(counts, left, strict=True)]
        for piece, read in _find_read(rows, leg, order).items():
            numbers = left[piece]
            numbers = numpy.arange(counts[piece]) if numbers is None else numbers
            left[piece] = numbers[~_make_mask(len(numbers), read)]
    return left


def _make_mask(rows: int, read: Sequence[tuple[int, int] | Array]) -> Array:
    mask = numpy.zeros(rows, bool)
    for each in read:
        mask[slice(*each) if isinstance(each, tuple) else each] = True
    return mask


def _find_read(rows: Sequence[int], leg: StreamLeg, order: Order) -> dict[int, list[tuple[int, int] | Array]]:
    """Return, by piece, the stretches and the numbers of the rows that a leg has read."""
    result: dict[int, list[tuple[int, int] | Array]] = {}
    of_ranks = [shares.divide_ranges(rows, leg.ranks, rank) for rank in range(leg.ranks)]
    plan = shares.Batches(tuple(sum(each.rows for each in ranges) for ranges in of_ranks), leg.batch_size)
    for rank, ranges in enumerate(of_ranks):
        done = plan.get_bounds(rank, min(leg.steps, plan.steps))[0]
        for window in make_windows(ranges, leg.mixing, order, rank):
            if window.start >= done:
                break
            whole = window.start + window.rows <= done
            taken = numpy.sort(window.draw_order(order, rank)[: done - window.start]) if not whole else None
            offset = 0
            for _, part in window.parts:
                rows_read: tuple[int, int] | Array = (part.start, part.start + part.rows)
                if taken is not None:
                    first, last = numpy.searchsorted(taken, [offset, offset + part.rows])
                    rows_read = taken[first:last] - offset + part.start
                result.setdefault(part.piece, []).append(rows_read)
                offset += part.rows
    return result
