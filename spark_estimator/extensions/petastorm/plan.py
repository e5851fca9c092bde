"""A reader's work as plain values: which rows of which files, how often, in which order, and what is done to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
import pyarrow

from spark_estimator.data.fields import is_list
from spark_estimator.data.rank.shares import compute_begin, compute_share
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, Piece
from spark_estimator.extensions.petastorm.pages import Page, check_no_null, make_page
from spark_estimator.extensions.petastorm.stream import Order, read_pages
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
        return compute_share(self.files.rows, self.shards, self.shard)

    @property
    def most_rows(self) -> int:
        """Return the rows of the largest shard."""
        return compute_share(self.files.rows, self.shards, 0)

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

    def read_pages(self, first_epoch: int, by_row: bool, without_null: Collection[str] = ()) -> Iterator[Page]:
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

        def read_page(piece: Piece) -> Page:
            table = self._read_table(piece, footers)
            for name in without_null:
                check_no_null(table.column(name), name, self._describe_place(piece))
            if transformer is None:
                return make_page(table, self.shapes, by_row)
            return transformer.transform_table(table, self.shapes, self._describe_place(piece))

        return read_pages(self._find_pieces(), read_page, self._order, self.threads, first_epoch)

    def read_rows(self, first_epoch: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        """Yield the rows of each row group as tuples of the values of `result_schema`; as `read_pages`."""
        transformer = self.transformer
        if transformer is None:
            for page in self.read_pages(first_epoch, by_row=True):
                yield zip(*(page[name] for name in self.result_schema.fields), strict=True)
            return
        footers: dict[int, Any] = {}
        called = transformer

        def transform_rows(piece: Piece) -> list[tuple[Any, ...]]:
            page = make_page(self._read_table(piece, footers), self.shapes, by_row=True)
            return called.transform_rows(page, self._describe_place(piece))

        yield from read_pages(self._find_pieces(), transform_rows, self._order, self.threads, first_epoch)

    @property
    def _order(self) -> Order:
        return Order(self.num_epochs, self.seed, self.shuffle_row_groups, self.shuffle_rows)

    def _read_table(self, piece: Piece, footers: dict[int, Any]) -> pyarrow.Table:
        return self._cast_table(self.files.read(piece, self.columns, footers))

    def _describe_place(self, piece: Piece) -> str:
        """Return the file and row group of a piece, for messages."""
        return f"{self.files.files[piece.file].path}, row group {piece.group}"

    def _find_pieces(self) -> list[Piece]:
        whole = self.files.find_pieces(self.shard, self.shards)
        if self.parts == 1:
            return whole
        return [
            Piece(piece.file, piece.group, piece.start + compute_begin(piece.rows, self.parts, part), rows)
            for piece in whole
            for part in range(self.parts)
            if (rows := compute_share(piece.rows, self.parts, part))
        ]

    def _cast_table(self, table: pyarrow.Table) -> pyarrow.Table:
        if self.precision is None:
            return table
        kind = pyarrow.from_numpy_dtype(numpy.dtype(self.precision))
        for number, field in enumerate(table.schema):
            inside = field.type.value_type if is_list(field.type) else field.type
            if field.name in self.files.coded or not pyarrow.types.is_floating(inside) or inside == kind:
                continue
            target = pyarrow.list_(kind) if is_list(field.type) else kind
            table = table.set_column(number, field.name, table.column(number).cast(target))
        return table
