"""A reader's work as plain values: which rows of which files, how often, in which order, and what is done to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
import pyarrow

from spark_estimator.data.fields import is_list
from spark_estimator.data.rank.shares import begin, share
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, Piece
from spark_estimator.extensions.petastorm.pages import Page, check_no_null, page_of
from spark_estimator.extensions.petastorm.stream import Order, pages
from spark_estimator.extensions.petastorm.transform import Transformer, TransformSpec
from spark_estimator.extensions.petastorm.unischema import Unischema


@dataclass(frozen=True)
class ReadPlan:
    """Which rows a reader reads, and how. It is pickled.

    Attributes:
        files: that hold them.
        schema: of the columns that are read.
        result_schema: of the rows that the reader returns; another one where there is a transform.
        precision: "float32" or "float64" for fractions; None: as they are in the files.
        shard, shards: part `shard` of `shards` equal parts of the rows.
        num_epochs: all rows are read so often; None: again and again.
        seed: determines the orders of the epochs.
        shuffle_rows, shuffle_row_groups: rows within row groups, and row groups, have a new order in each epoch.
        parts: the number of parts in which a row group is read.
        batched: many rows are returned at a time.
        transform: what is done to them.
        threads: that read ahead.
    """

    files: DatasetFiles
    schema: Unischema
    result_schema: Unischema
    precision: str | None = None
    shard: int = 0
    shards: int = 1
    num_epochs: int | None = 1
    seed: int = 0
    shuffle_rows: bool = False
    shuffle_row_groups: bool = True
    parts: int = 1
    batched: bool = True
    transform: TransformSpec | None = None
    threads: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read."""
        return tuple(self.schema.fields)

    @property
    def shuffles(self) -> bool:
        """Return whether each epoch has a new order."""
        return self.shuffle_rows or self.shuffle_row_groups

    @property
    def rows(self) -> int:
        """Return the rows of this shard, in one epoch, before the transform."""
        return share(self.files.rows, self.shards, self.shard)

    @property
    def most_rows(self) -> int:
        """Return the rows of the largest shard."""
        return share(self.files.rows, self.shards, 0)

    @property
    def transformer(self) -> Transformer | None:
        """Return the transform of the rows; None: nothing."""
        if self.transform is None:
            return None
        return Transformer(self.transform, self.result_schema, by_row=not self.batched)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of a row's values, by the columns' names."""
        return {name: field.shape for name, field in self.schema.fields.items()}

    def pages(self, first_epoch: int, by_row: bool, without_null: Collection[str] = ()) -> Iterator[Page]:
        """Yield the row groups of all epochs as arrays.

        Args:
            first_epoch: names the order of the first one.
            by_row: the pages are handed out row by row.
            without_null: columns that are read in which null is an error.

        Raises:
            DataError: files, or values in them, cannot be read, or the transform failed.
        """
        footers: dict[int, Any] = {}
        transformer = self.transformer

        def page(piece: Piece) -> Page:
            table = self._table(piece, footers)
            for name in without_null:
                check_no_null(table.column(name), name, self._place(piece))
            if transformer is None:
                return page_of(table, self.shapes, by_row)
            return transformer.of_table(table, self.shapes, self._place(piece))

        return pages(self._pieces(), page, self._order, self.threads, first_epoch)

    def rows_by_group(self, first_epoch: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        """Yield the rows of each row group as tuples of the values of `result_schema`; as `read_pages`."""
        transformer = self.transformer
        if transformer is None:
            for page in self.pages(first_epoch, by_row=True):
                yield zip(*(page[name] for name in self.result_schema.fields), strict=True)
            return
        footers: dict[int, Any] = {}
        called = transformer

        def rows(piece: Piece) -> list[tuple[Any, ...]]:
            page = page_of(self._table(piece, footers), self.shapes, by_row=True)
            return called.rows_of_page(page, self._place(piece))

        yield from pages(self._pieces(), rows, self._order, self.threads, first_epoch)

    @property
    def _order(self) -> Order:
        return Order(self.num_epochs, self.seed, self.shuffle_row_groups, self.shuffle_rows)

    def _table(self, piece: Piece, footers: dict[int, Any]) -> pyarrow.Table:
        return self._in_precision(self.files.read(piece, self.columns, footers))

    def _place(self, piece: Piece) -> str:
        """Return the file and row group of a piece, for messages."""
        return f"{self.files.files[piece.file].path}, row group {piece.group}"

    def _pieces(self) -> list[Piece]:
        whole = self.files.pieces(self.shard, self.shards)
        if self.parts == 1:
            return whole
        return [
            Piece(piece.file, piece.group, piece.start + begin(piece.rows, self.parts, part), rows)
            for piece in whole
            for part in range(self.parts)
            if (rows := share(piece.rows, self.parts, part))
        ]

    def _in_precision(self, table: pyarrow.Table) -> pyarrow.Table:
        if self.precision is None:
            return table
        kind = pyarrow.from_numpy_dtype(numpy.dtype(self.precision))
        for number, field in enumerate(table.schema):
            inside = field.type.value_type if is_list(field.type) else field.type
            if field.name in self.files.coded or not pyarrow.types.is_floating(inside) or inside == kind:
                continue
            wanted = pyarrow.list_(kind) if is_list(field.type) else kind
            table = table.set_column(number, field.name, table.column(number).cast(wanted))
        return table
