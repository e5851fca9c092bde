"""The arithmetic of rows and ranks: equal shares, moves of rows between ranks, and the batches of an epoch.

Nothing here communicates: every rank computes the same from the same counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def compute_share(total: int, parts: int, part: int) -> int:
    """Return how many of `total` items `part` gets if all `parts` get the same number, the first ones one more."""
    return total // parts + (part < total % parts)


def compute_begin(total: int, parts: int, part: int) -> int:
    """Return the index at which the share of `part` begins."""
    return part * (total // parts) + min(part, total % parts)


@dataclass(frozen=True)
class Move:
    """Rows that are sent from one rank to another."""

    source: int
    target: int
    rows: int


def plan_moves(counts: Sequence[int]) -> list[Move]:
    """Return the moves that make the ranks' rows equal, to one row, with as few rows sent as possible.

    Args:
        counts: [ranks] rows that each has.
    """
    total, size = sum(counts), len(counts)
    # The ranks with most rows keep the odd ones.
    order = sorted(range(size), key=lambda rank: (-counts[rank], rank))
    targets = {rank: compute_share(total, size, position) for position, rank in enumerate(order)}
    givers = [(rank, counts[rank] - targets[rank]) for rank in order if counts[rank] > targets[rank]]
    takers = [(rank, targets[rank] - counts[rank]) for rank in order if counts[rank] < targets[rank]]
    result: list[Move] = []
    while givers:
        (source, surplus), (target, lacking) = givers[-1], takers[-1]
        rows = min(surplus, lacking)
        result.append(Move(source, target, rows))
        for stack, rank, left in ((givers, source, surplus - rows), (takers, target, lacking - rows)):
            stack.pop()
            if left:
                stack.append((rank, left))
    return result


@dataclass(frozen=True)
class Batches:
    """How the ranks cut one epoch: the same number of steps on each, batches that differ by one row at most.

    Attributes:
        rows: [ranks] rows of each rank.
        batch_size: the most rows of a batch.
        most_steps: an epoch ends after this number; None: all rows are read.
    """

    rows: tuple[int, ...]
    batch_size: int
    most_steps: int | None = None

    @property
    def whole(self) -> int:
        """Return the steps that read all rows."""
        return -(-max(self.rows, default=0) // self.batch_size)

    @property
    def steps(self) -> int:
        """Return the steps of an epoch; on every rank."""
        return self.whole if self.most_steps is None else min(self.whole, self.most_steps)

    def get_bounds(self, rank: int, step: int) -> tuple[int, int]:
        """Return a batch's first row and the one after its last, in the epoch's order; zeros if no rank has rows."""
        if not self.whole:
            return 0, 0
        start = compute_begin(self.rows[rank], self.whole, step)
        return start, start + compute_share(self.rows[rank], self.whole, step)

    def count_rows(self, rank: int, step: int) -> int:
        """Return the rows of a batch; 0 on a rank that has run out of rows."""
        return compute_share(self.rows[rank], self.whole, step)

    def count_done(self, steps: int) -> int:
        """Return the rows of the first steps on all ranks together."""
        return sum(self.get_bounds(rank, steps)[0] for rank in range(len(self.rows)))

    def count_total(self, step: int) -> int:
        """Return the rows of a step on all ranks together."""
        return sum(self.count_rows(rank, step) for rank in range(len(self.rows)))


@dataclass(frozen=True)
class Range:
    """Consecutive rows within one piece of the data.

    Attributes:
        piece: its number.
        start: the first row, counted in the piece.
        rows: how many.
    """

    piece: int
    start: int
    rows: int


def divide_ranges(pieces: Sequence[int], parts: int, part: int) -> list[Range]:
    """Return the rows of one of `parts` equal shares: all pieces are one sequence of rows, which is cut into as
    many.

    Args:
        pieces: [pieces] rows of each.
    """
    first = compute_begin(sum(pieces), parts, part)
    last = first + compute_share(sum(pieces), parts, part)
    result, offset = [], 0
    for number, rows in enumerate(pieces):
        start, stop = max(first, offset), min(last, offset + rows)
        if start < stop:
            result.append(Range(number, start - offset, stop - start))
        offset += rows
    return result
