"""A rank's rows that are read from Parquet files in each epoch, within limits of disk and memory.

Made by `stream_rows`. Guarantees: each rank has an equal share, to one row. Each row is read once in an
epoch, also if another number of ranks continues it. With the same number of ranks and the same limits, rows
are read in the same order, also in an epoch that is resumed in the middle. A limit that is too small for one
row counts as one row: reading is then slower, but never blocks.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy

from spark_estimator.collectives import context
from spark_estimator.collectives.cores import count_available_cores
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.stream.cache import DiskCache
from spark_estimator.data.stream.limits import Buffers, RowLimits
from spark_estimator.data.stream.order import Order, StreamLeg, find_remaining, make_windows
from spark_estimator.data.stream.pieces import Matrices, Pieces, make_pieces
from spark_estimator.data.stream.windows import Filled, WindowReader
from spark_estimator.errors import DataError

#: Of a piece, the numbers of the rows that are meant, in ascending order; None: all.
Chosen = Callable[[int], Array | None]


class StreamedRows(EpochRows):
    """Rows of one rank.

    Args:
        pieces: that have them.
        chosen: of each piece, the rows that belong here.
        counts: [pieces] how many those are.
        rank, size: whose they are, and how many ranks there are.
        buffers: the memory.
        cache_bytes: of the disk, for this rank.
    """

    def __init__(
        self,
        pieces: Pieces,
        chosen: Chosen,
        counts: Sequence[int],
        rank: int,
        size: int,
        buffers: Buffers,
        cache_bytes: int,
    ) -> None:
        self._pieces = pieces
        self._chosen = chosen
        self._piece_counts = list(counts)
        self._buffers = buffers
        self._cache_bytes = cache_bytes
        self._ranges = shares.divide_ranges(counts, size, rank)
        self._cache: DiskCache | None = None
        self._lent: Matrices | None = None
        self.counts = tuple(shares.compute_share(sum(counts), size, each) for each in range(size))
        self.rank = rank

    def read_batches(
        self, batch_size: int, most_steps: int | None = None, order: Order = None, first: int = 0
    ) -> Iterator[Batch]:
        plan = self.make_plan(batch_size, most_steps)
        if first >= plan.steps:
            return
        rows = _InTurn(self._read_windows(order, plan.get_bounds(self.rank, first)[0]), self._pieces.fields)
        with closing(rows):
            for step in range(first, plan.steps):
                start, stop = plan.get_bounds(self.rank, step)
                matrices = rows.take(stop - start) if stop > start else self._lend_row()
                factor = (stop - start) * len(self.counts) / plan.count_total(step)
                yield Batch(matrices, factor, stop - start)

    def split(self, share: float, seed: int, read: Sequence[int] = ()) -> tuple[StreamedRows, StreamedRows]:
        held_count = min(round(self.total * share), self.total - 1)  # something is left to train on
        ends = numpy.cumsum([0, *self._piece_counts])
        # Of each piece its part, so that the rows left out are the same on any number of ranks.
        held_before = [int(end) * held_count // max(1, self.total) for end in ends]
        held_counts = [after - before for before, after in itertools.pairwise(held_before)]
        chosen, counts = self._chosen, self._piece_counts

        def draw_numbers(piece: int, *, is_held: bool) -> Array:
            mixed = numpy.random.default_rng([seed, piece]).permutation(counts[piece])
            some = mixed[: held_counts[piece]] if is_held else mixed[held_counts[piece] :]
            numbers = chosen(piece)
            return numpy.sort(some) if numbers is None else numbers[numpy.sort(some)]

        rest = [count - part for count, part in zip(counts, held_counts, strict=True)]
        of_held = self._cache_bytes * held_count // max(1, self.total)
        return (
            self._choose_rows(lambda piece: draw_numbers(piece, is_held=False), rest, self._cache_bytes - of_held),
            self._choose_rows(lambda piece: draw_numbers(piece, is_held=True), held_counts, of_held),
        )

    def compute_checksums(self) -> list[int]:
        """Return the number of rows, and a checksum of the files' sizes and row groups: no row is read for it."""
        files = sorted((file.size, file.groups) for file in self._pieces.rows.files.files)
        return [self.total, zlib.crc32(repr(files).encode())]

    def compute_spread(self) -> list[int]:
        mixing = self._buffers.mixing
        text = repr((self.compute_checksums(), len(self.counts), mixing.window_rows, mixing.streams, mixing.first_rows))
        return [zlib.crc32(f"{text} {rank}".encode()) for rank in range(len(self.counts))]

    def read_blocks(self, fields: Sequence[int]) -> Iterator[tuple[Array, ...]]:
        pieces = self._pieces.select_fields(fields)
        for each in self._ranges:
            yield from self._read(pieces, each.piece, each.start, each.rows)

    def make_leg(self, batch_size: int, steps: int) -> dict[str, Any]:
        return StreamLeg(len(self.counts), batch_size, self._buffers.mixing, steps).to_dict()

    def find_remaining(self, legs: Sequence[Mapping[str, Any]], order: Order) -> StreamedRows:
        numbers = find_remaining(self._piece_counts, [StreamLeg.from_dict(leg) for leg in legs], order)
        counts = [count if each is None else len(each) for count, each in zip(self._piece_counts, numbers, strict=True)]
        chosen = self._chosen

        def choose_remaining(piece: int) -> Array | None:
            each, before = numbers[piece], chosen(piece)
            return before if each is None else each if before is None else before[each]

        return self._choose_rows(choose_remaining, counts, 0)

    def _choose_rows(self, chosen: Chosen, counts: Sequence[int], cache_bytes: int) -> StreamedRows:
        return StreamedRows(self._pieces, chosen, counts, self.rank, len(self.counts), self._buffers, cache_bytes)

    def _read_windows(self, order: Order, skipped: int) -> Iterator[tuple[Filled, int]]:
        """Yield the windows, and how many rows each leaves out at its beginning: the rank's first `skipped` rows."""
        if self._cache is None:
            self._cache = DiskCache.from_ranges(self._ranges, self._pieces.fields, self._cache_bytes)
        mixing = self._buffers.mixing
        of_epoch = (
            window
            for window in make_windows(self._ranges, mixing, order, self.rank)
            if window.start + window.rows > skipped
        )
        most = max(1, min(mixing.window_rows, self.counts[self.rank]))
        reader = WindowReader(of_epoch, self._read_range, self._pieces.fields, most, order, self.rank)
        with closing(reader.read_windows()) as windows_in_memory:
            for filled in windows_in_memory:
                yield filled, max(0, skipped - filled.window.start)

    def _read_range(self, number: int, part: Range) -> Iterator[Matrices]:
        """Return a range from the first row of a part of it to its end."""
        assert self._cache is not None
        whole = self._ranges[number]
        before = part.start - whole.start
        # An epoch's first window is small, and must not wait for more rows than it has.
        batch_rows = min(self._buffers.decoded_rows, part.rows)
        cached = self._cache.read(number, before, whole.rows - before, batch_rows)
        if cached is not None:
            return cached
        batches = self._read(self._pieces, part.piece, part.start, whole.rows - before, batch_rows)
        return batches if before else self._cache.keep(number, batches)

    def _read(
        self, pieces: Pieces, piece: int, start: int, rows: int, batch_rows: int | None = None
    ) -> Generator[Matrices, None, None]:
        column_bytes = self._buffers.column_bytes
        batch_rows = self._buffers.decoded_rows if batch_rows is None else batch_rows
        numbers = self._chosen(piece)
        if numbers is None:
            yield from pieces.read(piece, start, rows, batch_rows, column_bytes)
            return
        numbers = numbers[start : start + rows]
        first, last = int(numbers[0]), int(numbers[-1])
        with closing(pieces.read(piece, first, last - first + 1, batch_rows, column_bytes)) as batches:
            for batch in batches:
                lower, upper = numpy.searchsorted(numbers, [first, first + len(batch[0])])
                taken = numbers[lower:upper] - first
                first += len(batch[0])
                if len(taken):
                    yield tuple(matrix.take(taken, axis=0) for matrix in batch)

    def _lend_row(self) -> Matrices:
        """Return one row of any rank, for a rank that has none left in a step."""
        if self._lent is None:
            piece = next(number for number, count in enumerate(self._piece_counts) if count)
            with closing(self._read(self._pieces, piece, 0, 1)) as batches:
                self._lent = tuple(matrix[:1] for matrix in next(batches))
        return tuple(matrix.copy() for matrix in self._lent)


class _InTurn:
    """The rows of windows, in the order in which they are read.

    Args:
        windows: with the number of rows that are left out at the beginning of each.
        fields: of the rows.
    """

    def __init__(self, windows: Iterator[tuple[Filled, int]], fields: Sequence[Field]) -> None:
        self._windows = windows
        self._fields = fields
        # Rows of the present window that are left, and where they begin.
        self._matrices: Sequence[Array] = ()
        self._place = self._rows = 0

    def take(self, rows: int) -> Matrices:
        """Return copies of the next rows, of one window or of several."""
        if rows <= self._rows:
            return tuple(matrix.copy() for matrix in self._take_next(rows))
        result = tuple(numpy.empty((rows, each.width), each.stored_dtype) for each in self._fields)
        done = 0
        while done < rows:
            if not self._rows:
                filled, self._place = next(self._windows)
                self._matrices, self._rows = filled.matrices, filled.window.rows - self._place
            count = min(rows - done, self._rows)
            for target, source in zip(result, self._take_next(count), strict=True):
                target[done : done + count] = source
            done += count
        return result

    def close(self) -> None:
        """End what is read ahead."""
        close = getattr(self._windows, "close", None)
        if close is not None:
            close()

    def _take_next(self, rows: int) -> list[Array]:
        start, self._place, self._rows = self._place, self._place + rows, self._rows - rows
        return [matrix[start : start + rows] for matrix in self._matrices]


def stream_rows(
    source: FileRows, held_source: FileRows | None, limits: RowLimits, purpose: str
) -> tuple[StreamedRows, StreamedRows | None] | None:
    """Return a rank's rows within limits; None if all rows fit on one host's disk, so that no limit is needed.

    Args:
        held_source: files with rows for validation alone; None: there are none, or `source` has a column of marks.
        purpose: of the rows, for messages.

    Returns:
        The rows to train on, and those that are marked or in separate files; None: there are none.

    Raises:
        DataError: there are no rows, or a value cannot be used.
    """
    is_rank = context.is_initialized()
    rank, size, local = (context.rank(), context.size(), context.local_size()) if is_rank else (0, 1, 1)
    row_bytes = sum(field.row_bytes for field in source.encoder.fields)
    rows = source.files.rows + (0 if held_source is None else held_source.files.rows)
    if rows * row_bytes <= limits.cache_bytes:  # on any hosts: a rank may be replaced on another
        return None
    train, marked = make_pieces(source)
    if held_source is not None:
        # All rows of these files are for validation.
        marked, _ = make_pieces(replace(held_source, encoder=replace(held_source.encoder, marker=None)))
    if not sum(train.counts):
        raise DataError(
            f"there are no rows for {purpose}: the files are empty, all of their rows were dropped, or the column that "
            "validation names marks them all."
        )
    total = sum(train.counts) + sum(marked.counts)

    def make_rows(pieces: Pieces) -> StreamedRows:
        buffers = Buffers.from_limit(limits.buffer_bytes, pieces.fields, len(pieces.rows.encoder.read))
        buffers = buffers.fit_to_share(-(-sum(pieces.counts) // size))
        cache_bytes = limits.cache_bytes // local * sum(pieces.counts) // total
        # Arrow's threads beside the thread of the training and the one that reads take cores from both.
        pieces = replace(pieces, parallel=count_available_cores() > 2 * local)
        return StreamedRows(pieces, lambda piece: None, pieces.counts, rank, size, buffers, cache_bytes)

    return make_rows(train), make_rows(marked) if sum(marked.counts) else None
