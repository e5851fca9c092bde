"""Which rows of an epoch have been read, computed from a few numbers, also for another number of ranks.

Ranks read the rows of all files as one sequence, of which each has a contiguous range
(`shares.divide_ranges`); a row's place in that sequence is its *number*, for any number of ranks. The numbers
of rows that each rank has read determine which rows were sent to other ranks (`shares.plan_moves`), and so
which rows each has. A *leg* is a part of an epoch that the same ranks have read. Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from spark_estimator.data.fields import Array
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.prefetch import shuffle_numbers


@dataclass(frozen=True)
class Leg:
    """Steps of one epoch.

    Attributes:
        read: [ranks] rows that each has read from the files, before they were evened out.
        batch_size: the most rows of a batch.
        steps: that were done.
    """

    read: tuple[int, ...]
    batch_size: int
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"read": list(self.read), "batch_size": self.batch_size, "steps": self.steps}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Leg:
        """Return the leg that `to_dict` made values of.

        Raises:
            ValueError: it is of rows that are streamed.
        """
        if "read" not in values:
            raise ValueError(
                "the state is of a loader that reads rows in each epoch (cache_bytes), and this one keeps all on disk: "
                "their orders differ. Take it up at the end of an epoch, or with the same limits."
            )
        return Leg(tuple(map(int, values["read"])), int(values["batch_size"]), int(values["steps"]))


def compute_numbers(read: Sequence[int]) -> list[Array]:
    """Return [ranks] the numbers of the rows that each has once they are evened out, in the order in which it has
    them.

    Args:
        read: [ranks] rows that each has read.
    """
    plan = shares.plan_moves(read)
    starts = numpy.concatenate([[0], numpy.cumsum(read)]).astype(numpy.int64)
    stops = [int(starts[rank + 1]) - sum(m.rows for m in plan if m.source == rank) for rank in range(len(read))]
    result = [[numpy.arange(starts[rank], stops[rank])] for rank in range(len(read))]
    # Each source sends its surplus to the targets in their order; each target receives in the order of the sources.
    for source, offset in enumerate(stops):
        for target in range(len(read)):
            rows = sum(move.rows for move in plan if (move.source, move.target) == (source, target))
            if rows:
                result[target].append(numpy.arange(offset, offset + rows))
                offset += rows
    return [numpy.concatenate(pieces) for pieces in result]


@dataclass(frozen=True)
class HeldShare:
    """Rows that are left out of training, drawn by chance.

    Attributes:
        share: of the rows of all ranks.
        seed: of the draw.
        read: [ranks] rows that each rank had read from the files when they were drawn. The same rows stay left out
            when the ranks change.
    """

    share: float
    seed: int
    read: tuple[int, ...]

    @staticmethod
    def count_held(rows: Sequence[int], share: float) -> dict[int, int]:
        """Return, by rank, how many of its rows are left out: a rank with more rows gives up more, so that the rest is
        even.

        Args:
            rows: [ranks] that each has.
        """
        order = sorted(range(len(rows)), key=lambda rank: -rows[rank])
        count = min(round(sum(rows) * share), sum(rows) - 1)  # something is left to train on
        return {rank: shares.compute_share(count, len(rows), position) for position, rank in enumerate(order)}

    def draw(self, rank: int, rows: int, count: int) -> tuple[Array, Array]:
        """Return the places, ascending, of a rank's rows that are left out, and of its others.

        Args:
            rows: that the rank has.
            count: how many of them are left out.
        """
        mixed = numpy.random.default_rng([self.seed, rank]).permutation(rows)
        return numpy.sort(mixed[:count]), numpy.sort(mixed[count:])

    def make_mask(self) -> Array:
        """Return [rows of all ranks] whether the row of this number is left out."""
        numbers = compute_numbers(self.read)
        counts = self.count_held([len(each) for each in numbers], self.share)
        result = numpy.zeros(sum(self.read), bool)
        for rank, each in enumerate(numbers):
            result[each[self.draw(rank, len(each), counts[rank])[0]]] = True
        return result


def find_seen(legs: Sequence[Leg], order: tuple[int, int] | None, held: Array | None = None) -> Array:
    """Return [rows of all ranks] whether the legs, one after the other, have read the row of this number.

    Args:
        order: seed and epoch; None: rows are read in the order in which they are stored.
        held: [rows of all ranks] those that no leg reads, and that count as read; None: none.
    """
    result = numpy.zeros(sum(legs[0].read) if legs else 0, bool) if held is None else held.copy()
    for leg in legs:
        left = [numbers[~result[numbers]] for numbers in compute_numbers(leg.read)]
        plan = shares.Batches(tuple(len(numbers) for numbers in left), leg.batch_size)
        for rank, numbers in enumerate(left):
            count = plan.get_bounds(rank, min(leg.steps, plan.steps))[0]
            result[_put_in_order(numbers, order, rank)[:count]] = True
    return result


def find_remaining(
    read: Sequence[int], rank: int, was_seen: Array, held: Array | None = None
) -> tuple[Callable[[Array], Array], tuple[int, ...]]:
    """Return the remaining rows, for the present ranks.

    Args:
        read: [ranks] rows that each has read.
        was_seen, held: as of `find_seen`.

    Returns:
        A function that keeps the remaining ones of a rank's rows that are not held, and [ranks] the number of
        remaining rows of each.
    """
    numbers = compute_numbers(read)
    rank_numbers = numbers[rank] if held is None else numbers[rank][~held[numbers[rank]]]
    here = ~was_seen[rank_numbers]
    return lambda places: places[here], tuple(int((~was_seen[each]).sum()) for each in numbers)


def _put_in_order(numbers: Array, order: tuple[int, int] | None, rank: int) -> Array:
    """Return the numbers as the rank reads them: chance orders the places, not the rows."""
    if order is None:
        return numbers
    return numbers[shuffle_numbers(numpy.arange(len(numbers)), (order[0], rank, order[1]))]
