"""The rows of one rank, once all ranks have as many as each other; and the batches of each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.data import shares
from spark_estimator.data.fields import Array
from spark_estimator.data.spool import Spool
from spark_estimator.errors import DataError


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        matrices: [fields] each [rows, width], to be written to as one likes.
        factor: what this rank's mean over the rows is multiplied with, so that the ranks' average is the mean over
            all rows of the step. 0 where the rank has none left: it then has one row that does not count.
        rows: how many of the rows count.
    """

    matrices: tuple[Array, ...]
    factor: float
    rows: int


@dataclass(frozen=True)
class RankRows:
    """Some of the rows of a rank.

    Attributes:
        matrices: [fields][pieces] each [rows, width]: the rows of the spool, then those that came from other ranks.
        chosen: the numbers of the rows that belong here.
        counts: [ranks] how many each rank has; they differ by one at most, but for rows that a column has marked.
    """

    matrices: tuple[Sequence[Array], ...]
    chosen: Array
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.counts)

    def split(self, share: float, seed: int) -> tuple[RankRows, RankRows]:
        """Leaves out a share of the rows, drawn by chance: all ranks' rows together, to the row.

        Returns:
            The others, and those left out.
        """
        size = len(self.counts)
        # Who has more rows gives up more, so that what is left is as even as before.
        order = sorted(range(size), key=lambda rank: -self.counts[rank])
        held = min(round(self.total * share), self.total - 1)  # something is left to train on
        given = {rank: shares.share(held, size, place) for place, rank in enumerate(order)}
        rank = context.rank()
        mixed = numpy.random.default_rng([seed, rank]).permutation(self.chosen)
        return (
            RankRows(
                self.matrices,
                numpy.sort(mixed[given[rank] :]),
                tuple(count - given[other] for other, count in enumerate(self.counts)),
            ),
            RankRows(self.matrices, numpy.sort(mixed[: given[rank]]), tuple(given[other] for other in range(size))),
        )

    def checksum(self) -> list[int]:
        """One number for each field: the same for the same rows, however they are spread and ordered. A collective."""
        own = [
            sum(int(_words(piece).sum(dtype=numpy.uint64)) for piece in pieces if len(piece)) % (1 << 64)
            for pieces in self.matrices
        ]
        sums = arrays.allgather(numpy.array([own], numpy.uint64).view(numpy.int64), "checksums of rows")
        return [int(one) for one in sums.view(numpy.uint64).sum(axis=0, dtype=numpy.uint64)]

    def batches(
        self, batch_size: int, most_steps: int | None = None, order: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """The batches of one epoch: as many on every rank.

        Args:
            batch_size: the most rows of a batch.
            most_steps: the epoch ends after so many.
            order: whole numbers, such as seed and epoch, that name the order in which rows are read; None: as they lie.
        """
        rank = context.rank()
        plan = shares.Batches(self.counts, batch_size, most_steps)
        numbers = self.chosen
        if order is not None:
            numbers = numpy.random.default_rng([*order, rank]).permutation(numbers)
        for step in range(plan.steps):
            start, stop = plan.bounds(rank, step)
            rows = numbers[start:stop]
            counted = len(rows)
            if not counted:
                rows = numbers[:1] if len(numbers) else numpy.zeros(1, numpy.int64)
            factor = counted * len(self.counts) / plan.total(step)
            yield Batch(tuple(_take(pieces, rows) for pieces in self.matrices), factor, counted)


def _take(pieces: Sequence[Array], rows: Array) -> Array:
    """[rows, width] a copy of the rows with these numbers."""
    first = pieces[0]
    if len(pieces) == 1:
        return first.take(rows, axis=0)
    here = rows < len(first)
    taken = numpy.empty((len(rows), first.shape[1]), first.dtype)
    taken[here] = first.take(rows[here], axis=0)
    taken[~here] = pieces[1].take(rows[~here] - len(first), axis=0)
    return taken


def balanced(spool: Spool, what: str) -> RankRows:
    """Sends rows from ranks that have more to those that have fewer. A collective: every rank calls it.

    Args:
        what: they are for, in messages.

    Raises:
        DataError: no rank has a row.
    """
    rank, size = context.rank(), context.size()
    gathered = arrays.allgather(numpy.array([spool.rows], numpy.int64), f"rows of {what}")
    counts = [int(count) for count in gathered]
    if not sum(counts):
        raise DataError(f"there are no rows for {what}: the DataFrame is empty, or all of its rows were dropped.")
    plan = shares.moves(counts)
    kept = counts[rank] - sum(move.rows for move in plan if move.source == rank)
    splits = [sum(move.rows for move in plan if (move.source, move.target) == (rank, other)) for other in range(size)]
    spare = counts.index(max(counts))
    matrices: list[Sequence[Array]] = []
    for number, matrix in enumerate(spool.matrices):
        pieces = [matrix[:kept]]
        if plan:
            surplus = _as_bytes(matrix[kept:])
            came, _ = arrays.alltoall(surplus, splits, f"surplus rows of {what}, {number}")
            pieces.append(came.view(matrix.dtype))
        if min(counts) == 0 and sum(counts) < size:  # some rank has no row at all: it gets one that does not count
            row = _as_bytes(matrix[:1] if len(matrix) else numpy.zeros((1, matrix.shape[1]), matrix.dtype))
            lent = arrays.broadcast(row, spare, f"a row of {what}, {number}").view(matrix.dtype)
            if not kept and not any(len(piece) for piece in pieces):
                pieces = [lent]
        matrices.append(pieces)
    after = list(counts)
    for move in plan:
        after[move.source] -= move.rows
        after[move.target] += move.rows
    return RankRows(tuple(matrices), numpy.arange(after[rank]), tuple(after))


def _words(matrix: Array) -> Array:
    """The numbers' bits, as whole numbers of the same size."""
    return numpy.ascontiguousarray(matrix).view(f"u{matrix.dtype.itemsize}")


def _as_bytes(matrix: Array) -> Array:
    """[rows, bytes], whatever the type is."""
    return numpy.ascontiguousarray(matrix).view(numpy.uint8)
