"""The row groups of a set of files as pieces whose rows are read in sequence, as matrices."""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import pyarrow

from spark_estimator.collectives import arrays, context
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.parquet_file import slice_rows
from spark_estimator.data.rank.spool import split_marked
from spark_estimator.errors import DataError

_MOST_FOOTERS = 256

#: Rows of each field, [rows, width].
Matrices = tuple[Array, ...]


class PiecePart(enum.Enum):
    """Which rows of a piece are meant, where a column marks some for validation."""

    TRAIN = 0
    MARKED = 1


@dataclass(frozen=True)
class Pieces:
    """The row groups of files, in the order of the files.

    Attributes:
        rows: the files, and what makes matrices of their rows.
        part: of each piece.
        counts: [pieces] rows of the part.
        parallel: several threads decode a row group, each a column at a time.
        footers: of files that were read, by number.
    """

    rows: FileRows
    part: PiecePart
    counts: tuple[int, ...]
    parallel: bool = True
    footers: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the matrices."""
        return self.rows.encoder.fields

    @property
    def _places(self) -> list[tuple[int, int]]:
        return [
            (number, group) for number, file in enumerate(self.rows.files.files) for group in range(len(file.groups))
        ]

    def read(
        self, piece: int, start: int, rows: int, batch_rows: int, column_bytes: int
    ) -> Generator[Matrices, None, None]:
        """Yield `rows` rows of a piece from `start` on, in its order, at most `batch_rows` at a time.

        Args:
            column_bytes: encoded bytes of each column that are read at a time.

        Raises:
            DataError: a value cannot be used, or the file is not what it was.
        """
        number, group = self._places[piece]
        path = self.rows.files.files[number].path
        done = 0
        with closing(self._read_prepared(piece, start, rows, batch_rows, column_bytes)) as batches:
            for batch in batches:
                if not batch.num_rows:
                    continue
                try:
                    matrices = tuple(self.rows.encoder.make_matrices(batch, start + done))
                except DataError as error:
                    raise DataError(
                        f"{path}, row group {group} (rows are counted from its first one): {error}"
                    ) from error
                done += batch.num_rows
                yield matrices
        if done != rows:
            raise DataError(
                f"{path} has changed, or a function of yours gives other rows each time: row group {group} has {done} "
                f"of the {rows} rows from {start} on that it had at first."
            )

    def _read_prepared(
        self, piece: int, start: int, rows: int, batch_rows: int, column_bytes: int
    ) -> Generator[pyarrow.RecordBatch, None, None]:
        number, group = self._places[piece]
        files, encoder = self.rows.files, self.rows.encoder
        file = files.files[number]
        # A footer has a description of each column of each row group; to read it each time takes long.
        with file.open_file(files.store, column_bytes, self.footers.get(number)) as opened:
            if len(self.footers) >= _MOST_FOOTERS:
                self.footers.clear()
            self.footers[number] = opened.metadata
            batches = file.read_group(opened, group, encoder.read, batch_rows, self.parallel)
            keeps = encoder.keeps_rows and not encoder.marks_rows
            if keeps:
                batches = slice_rows(batches, start, rows)
            prepared = encoder.encode_batches(batches, batch_rows)
            if keeps:
                yield from prepared
                return
            own_rows = (split_marked(batch)[self.part.value] for batch in prepared)
            try:
                yield from slice_rows((batch for batch in own_rows if batch is not None), start, rows)
            except ValueError:  # `read` counts
                return

    def select_fields(self, numbers: Sequence[int]) -> Pieces:
        """Return the same rows with some of the fields, for which no other columns are read if possible.

        Args:
            numbers: of the fields.
        """
        fields = tuple(self.fields[number] for number in numbers)
        encoder = self.rows.encoder
        if not encoder.keeps_rows or encoder.decoders or isinstance(encoder, KeptRows):
            return replace(self, rows=replace(self.rows, encoder=replace(encoder, fields=fields)))
        columns = list(dict.fromkeys(column for field in fields for column in field.columns))
        names = tuple(encoder.columns[int(column[1:])] for column in columns)
        renamed = tuple(
            replace(field, columns=tuple(f"c{columns.index(column)}" for column in field.columns)) for field in fields
        )
        return replace(self, rows=replace(self.rows, encoder=replace(encoder, columns=names, fields=renamed)))


def make_pieces(rows: FileRows) -> tuple[Pieces, Pieces]:
    """Return the row groups, and their marked rows. A collective if the files alone do not show how many rows there
    are.

    Raises:
        DataError: a value cannot be used.
    """
    groups = [count for file in rows.files.files for count in file.groups]
    counts = numpy.array([groups, [0] * len(groups)], numpy.int64)
    if not rows.encoder.keeps_rows or rows.encoder.marks_rows:
        counts = _count_rows(rows, len(groups))
    train, marked = (tuple(int(count) for count in of_part) for of_part in counts)
    pieces = Pieces(rows, PiecePart.TRAIN, train)
    return pieces, replace(pieces, part=PiecePart.MARKED, counts=marked, footers={})


def _count_rows(rows: FileRows, groups: int) -> Array:
    """Return [2][pieces] rows that are not marked, and those that are. Each rank reads some of the pieces. A
    collective.
    """
    encoder = rows.encoder
    if encoder.keeps_rows and not isinstance(encoder, KeptRows):  # then the marks alone decide
        encoder = replace(encoder, columns=(), decoders={}, fields=())
    rank, size = (context.rank(), context.size()) if context.is_initialized() else (0, 1)
    counts = numpy.zeros((2, groups), numpy.int64)
    file_groups = [(file, group) for file in rows.files.files for group in range(len(file.groups))]
    for piece in range(rank, groups, size):
        file, group = file_groups[piece]
        with file.open_file(rows.files.store) as opened:
            batches = file.read_group(opened, group, encoder.read, 1 << 13)
            for batch in encoder.encode_batches(batches, 1 << 13):
                for part, item in enumerate(split_marked(batch)):
                    counts[part, piece] += 0 if item is None else item.num_rows
    if size == 1:
        return counts
    of_ranks: Array = arrays.allgather(counts[None], "rows of pieces")
    total: Array = of_ranks.reshape(size, 2, groups).sum(axis=0)
    return total
