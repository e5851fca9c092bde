"""The rows of one rank, after all ranks got the same number; and the batches of each epoch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.data.fields import Array
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.data.rank.position import HeldShare, Leg, find_remaining, find_seen
from spark_estimator.data.rank.prefetch import Ahead
from spark_estimator.data.rank.spool import Spool
from spark_estimator.errors import DataError

_BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class RankRows(EpochRows):
    """Some of the rows of a rank.

    Attributes:
        matrices: [fields][pieces] each [rows, width]: the rows of the spool, then those of other ranks.
        chosen: the numbers of the rows that belong here, in the order in which they are read.
        counts: [ranks] how many each rank has; they differ by one at most, but for rows that a column has marked.
        rank: whose they are.
        read: [ranks] how many each has read, before they were evened out; empty where the rows have no order.
        held: the rows that `split` has left out; None: none.
        ahead: makes batches before they are asked for.
    """

    matrices: tuple[Sequence[Array], ...]
    chosen: Array
    counts: tuple[int, ...]
    rank: int = 0
    read: tuple[int, ...] = ()
    held: HeldShare | None = None
    ahead: Ahead = field(default_factory=Ahead, init=False, compare=False, repr=False)

    def split(self, share: float, seed: int, read: Sequence[int] = ()) -> tuple[RankRows, RankRows]:
        held_share = HeldShare(share, seed, tuple(read) or self.read)
        if held_share.read == self.read:
            counts = HeldShare.count_held(self.counts, share)
            left_out, others = held_share.draw(self.rank, len(self.chosen), counts[self.rank])
            rest = tuple(count - counts[rank] for rank, count in enumerate(self.counts))
        else:
            drawn, places = held_share.make_mask(), numpy.arange(len(self.chosen))
            keep, rest = find_remaining(self.read, self.rank, drawn)
            others, left_out = keep(places), find_remaining(self.read, self.rank, ~drawn)[0](places)
            counts = {rank: count - rest[rank] for rank, count in enumerate(self.counts)}
        return (
            RankRows(self.matrices, self.chosen[others], rest, self.rank, self.read, held_share),
            RankRows(self.matrices, self.chosen[left_out], tuple(counts[rank] for rank in sorted(counts)), self.rank),
        )

    def make_leg(self, batch_size: int, steps: int) -> dict[str, Any]:
        return Leg(self.read, batch_size, steps).to_dict()

    def find_remaining(self, legs: Sequence[Mapping[str, Any]], order: tuple[int, int] | None) -> RankRows:
        held_mask = None if self.held is None else self.held.make_mask()
        was_seen = find_seen([Leg.from_dict(leg) for leg in legs], order, held_mask)
        leave, counts = find_remaining(self.read, self.rank, was_seen, held_mask)
        return RankRows(self.matrices, leave(self.chosen), counts, self.rank)

    def compute_checksums(self) -> list[int]:
        sums_here = [
            sum(int(_to_words(block).sum(dtype=numpy.uint64)) for block in self._read_blocks(pieces)) % (1 << 64)
            for pieces in self.matrices
        ]
        sums = arrays.allgather(numpy.array([sums_here], numpy.uint64).view(numpy.int64), "checksums of rows")
        return [int(item) for item in sums.view(numpy.uint64).sum(axis=0, dtype=numpy.uint64)]

    def compute_spread(self) -> list[int]:
        checksum = 0
        for pieces in self.matrices:
            for block in self._read_blocks(pieces):
                checksum = zlib.crc32(_to_bytes(block).data, checksum)
        return [int(item) for item in arrays.allgather(numpy.array([checksum], numpy.int64), "checksums of ranks")]

    def read_blocks(self, fields: Sequence[int]) -> Iterator[tuple[Array, ...]]:
        yield from zip(*(self._read_blocks(self.matrices[field]) for field in fields), strict=True)

    def _read_blocks(self, pieces: Sequence[Array]) -> Iterator[Array]:
        """Yield copies of the rows that belong here, some thousands at a time."""
        for start in range(0, len(self.chosen), _BLOCK_ROWS):
            yield _take(pieces, self.chosen[start : start + _BLOCK_ROWS])

    def read_batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        plan = self.make_plan(batch_size, most_steps)
        numbers = self.chosen if order is None else self.ahead.draw_order(self.chosen, (order[0], self.rank), order[1])

        def make_batch(step: int) -> Batch:
            start, stop = plan.get_bounds(self.rank, step)
            rows = numbers[start:stop]
            counted = len(rows)
            if not counted:
                rows = numbers[:1] if len(numbers) else numpy.zeros(1, numpy.int64)
            factor = counted * len(self.counts) / plan.count_total(step)
            return Batch(tuple(_take(pieces, rows) for pieces in self.matrices), factor, counted)

        row_bytes = sum(pieces[0].shape[1] * pieces[0].itemsize for pieces in self.matrices)
        return self.ahead.make_items(
            make_batch, range(first, plan.steps), row_bytes * min(batch_size, max(self.counts))
        )


def _take(pieces: Sequence[Array], rows: Array) -> Array:
    """Return [rows, width], a copy of the rows with these numbers."""
    first = pieces[0]
    if len(pieces) == 1:
        return first.take(rows, axis=0)
    here = rows < len(first)
    taken = numpy.empty((len(rows), first.shape[1]), first.dtype)
    taken[here] = first.take(rows[here], axis=0)
    taken[~here] = pieces[1].take(rows[~here] - len(first), axis=0)
    return taken


def balance(spool: Spool, purpose: str, *, by_value: bool = False) -> RankRows:
    """Send rows from ranks that have more to those that have fewer. A collective: every rank calls it.

    Args:
        purpose: of the rows, for messages.
        by_value: rows are read in an order that only their values decide, not in the order of their arrival.

    Raises:
        DataError: no rank has a row.
    """
    rank, size = context.rank(), context.size()
    gathered = arrays.allgather(numpy.array([spool.rows], numpy.int64), f"rows of {purpose}")
    counts = [int(count) for count in gathered]
    if not sum(counts):
        raise DataError(
            f"there are no rows for {purpose}: the DataFrame is empty, all of its rows were dropped, or the column "
            "that validation names marks them all."
        )
    plan = shares.plan_moves(counts)
    kept_rows = counts[rank] - sum(move.rows for move in plan if move.source == rank)
    splits = [sum(move.rows for move in plan if (move.source, move.target) == (rank, other)) for other in range(size)]
    spare = counts.index(max(counts))
    order = sort_by_value(spool.matrices) if by_value and spool.rows else None
    matrices: list[Sequence[Array]] = []
    for number, matrix in enumerate(spool.matrices):
        pieces = [matrix[:kept_rows] if order is None else matrix]
        if plan:
            surplus = _to_bytes(matrix[kept_rows:] if order is None else matrix.take(order[kept_rows:], axis=0))
            came, _ = arrays.alltoall(surplus, splits, f"surplus rows of {purpose}, {number}")
            pieces.append(came.view(matrix.dtype))
        if min(counts) == 0 and sum(counts) < size:  # some rank has no row at all: it gets one that does not count
            row = _to_bytes(matrix[:1] if len(matrix) else numpy.zeros((1, matrix.shape[1]), matrix.dtype))
            lent = arrays.broadcast(row, spare, f"a row of {purpose}, {number}").view(matrix.dtype)
            if not kept_rows and not any(len(piece) for piece in pieces):
                pieces = [lent]
        matrices.append(pieces)
    after = list(counts)
    for move in plan:
        after[move.source] -= move.rows
        after[move.target] += move.rows
    chosen = numpy.arange(after[rank])
    if order is not None:
        chosen = numpy.concatenate([order[:kept_rows], spool.rows + numpy.arange(after[rank] - kept_rows)])
    return RankRows(tuple(matrices), chosen, tuple(after), rank, () if by_value else tuple(counts))


def sort_by_value(matrices: Sequence[Array]) -> Array:
    """Return [rows] the numbers of the rows in an order that is the same for the same rows, in any arrangement.

    By a hash of 64 bits: a sum of the words, each multiplied with a different number, whose bits are then mixed
    (Dietzfelbinger 1996; the mixing is MurmurHash3's). Equal rows may be in any order.

    Args:
        matrices: [fields] each [rows, width].
    """
    rows = len(matrices[0])
    hashes = numpy.zeros(rows, numpy.uint64)
    draw = numpy.random.default_rng(0)
    for matrix in matrices:
        factors = draw.integers(0, 1 << 63, matrix.shape[1], numpy.uint64) * 2 + 1
        for start in range(0, rows, _BLOCK_ROWS):
            block = _to_words(matrix[start : start + _BLOCK_ROWS]).astype(numpy.uint64)
            hashes[start : start + _BLOCK_ROWS] += block.dot(factors)
        hashes ^= hashes >> 33
        hashes *= numpy.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> 33
    return numpy.argsort(hashes)


def _to_words(matrix: Array) -> Array:
    """Return the numbers' bits, as whole numbers of the same size."""
    return numpy.ascontiguousarray(matrix).view(f"u{matrix.dtype.itemsize}")


def _to_bytes(matrix: Array) -> Array:
    """Return [rows, bytes], for every type."""
    return numpy.ascontiguousarray(matrix).view(numpy.uint8)
