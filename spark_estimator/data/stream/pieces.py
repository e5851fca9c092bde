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
from spark_estimator.data.fields import Array, Field, matrix_of
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.parquet_file import some_rows
from spark_estimator.data.preparation import dtypes_of
from spark_estimator.data.rank.spool import parted
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
        rows: the files, and what is done to their rows.
        fields: of the matrices.
        dtypes: [columns of the preparation] of the tensors that they are for; `fields` may be some of these alone.
        part: of each piece.
        counts: [pieces] rows of the part.
        parallel: several threads decode a row group, each a column at a time.
        footers: of files that were read, by number.
    """

    rows: FileRows
    fields: tuple[Field, ...]
    dtypes: tuple[str, ...]
    part: PiecePart
    counts: tuple[int, ...]
    parallel: bool = True
    footers: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def _places(self) -> list[tuple[int, int]]:
        return [
            (number, group) for number, file in enumerate(self.rows.files.files) for group in range(len(file.groups))
        ]

    def read(
        self, piece: int, start: int, rows: int, batch_rows: int, column_bytes: int
    ) -> Generator[Matrices, None, None]:
        """`rows` rows of a piece from `start` on, in its order, at most `batch_rows` at a time.

        Args:
            column_bytes: encoded bytes of each column that are read at a time.

        Raises:
            DataError: a value cannot be used, or the file is not what it was.
        """
        number, group = self._places[piece]
        path = self.rows.files.files[number].path
        done = 0
        with closing(self._prepared(piece, start, rows, batch_rows, column_bytes)) as batches:
            for batch in batches:
                if not batch.num_rows:
                    continue
                try:
                    matrices = tuple(matrix_of(batch, field, start + done) for field in self.fields)
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

    def _prepared(
        self, piece: int, start: int, rows: int, batch_rows: int, column_bytes: int
    ) -> Generator[pyarrow.RecordBatch, None, None]:
        number, group = self._places[piece]
        files, preparation = self.rows.files, self.rows.preparation
        file = files.files[number]
        # A footer has a description of each column of each row group; to read it each time takes long.
        with file.opened(files.store, column_bytes, self.footers.get(number)) as opened:
            if len(self.footers) >= _MOST_FOOTERS:
                self.footers.clear()
            self.footers[number] = opened.metadata
            batches = file.batches(opened, group, preparation.read, batch_rows, self.parallel)
            keeps = preparation.keeps_rows and not preparation.marks_rows
            if keeps:
                batches = some_rows(batches, start, rows)
            prepared = preparation.batches(batches, self.dtypes, batch_rows)
            if keeps:
                yield from prepared
                return
            marker = "marker" if preparation.marks_rows else None
            mine = (parted(batch, marker)[self.part.value] for batch in prepared)
            try:
                yield from some_rows((batch for batch in mine if batch is not None), start, rows)
            except ValueError:  # `read` counts
                return

    def only(self, places: Sequence[int]) -> Pieces:
        """The same rows with some of the fields, for which no other columns are read where that is possible.

        Args:
            places: of the fields.
        """
        fields = tuple(self.fields[place] for place in places)
        preparation = self.rows.preparation
        if not preparation.keeps_rows or preparation.decoders or isinstance(preparation, KeptRows):
            return replace(self, fields=fields)
        columns = list(dict.fromkeys(column for field in fields for column in field.columns))
        names = tuple(preparation.columns[int(column[1:])] for column in columns)
        renamed = tuple(
            replace(field, columns=tuple(f"c{columns.index(column)}" for column in field.columns)) for field in fields
        )
        rows = replace(self.rows, preparation=replace(preparation, columns=names))
        return replace(self, rows=rows, fields=renamed, dtypes=tuple(dtypes_of(renamed)))


def pieces_of(rows: FileRows, fields: Sequence[Field]) -> tuple[Pieces, Pieces]:
    """The row groups, and their marked rows. A collective where the files alone do not show how many rows there are.

    Raises:
        DataError: a value cannot be used.
    """
    groups = [count for file in rows.files.files for count in file.groups]
    counts = numpy.array([groups, [0] * len(groups)], numpy.int64)
    if not rows.preparation.keeps_rows or rows.preparation.marks_rows:
        counts = _counted(rows, fields, len(groups))
    train, marked = (tuple(int(count) for count in of_part) for of_part in counts)
    pieces = Pieces(rows, tuple(fields), tuple(dtypes_of(fields)), PiecePart.TRAIN, train)
    return pieces, replace(pieces, part=PiecePart.MARKED, counts=marked, footers={})


def _counted(rows: FileRows, fields: Sequence[Field], groups: int) -> Array:
    """[2][pieces] rows that are not marked, and those that are. Each rank reads some of the pieces. A collective."""
    preparation = rows.preparation
    dtypes = dtypes_of(fields)
    if preparation.keeps_rows and not isinstance(preparation, KeptRows):  # then the marks alone decide
        preparation, dtypes = replace(preparation, columns=(), decoders={}), []
    marker = "marker" if preparation.marks_rows else None
    rank, size = (context.rank(), context.size()) if context.is_initialized() else (0, 1)
    counts = numpy.zeros((2, groups), numpy.int64)
    places = [(file, group) for file in rows.files.files for group in range(len(file.groups))]
    for piece in range(rank, groups, size):
        file, group = places[piece]
        with file.opened(rows.files.store) as opened:
            batches = file.batches(opened, group, preparation.read, 1 << 13)
            for batch in preparation.batches(batches, dtypes, 1 << 13):
                for part, item in enumerate(parted(batch, marker)):
                    counts[part, piece] += 0 if item is None else item.num_rows
    if size == 1:
        return counts
    of_ranks: Array = arrays.allgather(counts[None], "rows of pieces")
    total: Array = of_ranks.reshape(size, 2, groups).sum(axis=0)
    return total
