"""A reader's work as plain values: which rows of which files, how often, in which order, and what is done to them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy
import pyarrow

from spark_estimator.data.fields import Array, is_list
from spark_estimator.data.rank.shares import compute_begin, compute_share
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, Piece
from spark_estimator.extensions.petastorm.pages import Page, check_no_null, count_rows, make_page
from spark_estimator.extensions.petastorm.transform import Transformer, TransformSpec
from spark_estimator.extensions.petastorm.unischema import Unischema

#: Some rows, as arrays of columns or one by one.
Rows = TypeVar("Rows", Page, list[Any])


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
        transformer = self.transformer

        def make(table: pyarrow.Table, place: str) -> Page:
            for name in without_null:
                check_no_null(table.column(name), name, place)
            if transformer is None:
                return make_page(table, self.shapes, by_row)
            return transformer.transform_table(table, self.shapes, place)

        return self._read(make, first_epoch)

    def read_rows(self, first_epoch: int) -> Iterator[Iterable[tuple[Any, ...]]]:
        """Yield the rows of each row group as tuples of the values of `result_schema`; as `read_pages`."""
        transformer = self.transformer
        if transformer is None:
            for page in self.read_pages(first_epoch, by_row=True):
                yield zip(*(page[name] for name in self.result_schema.fields), strict=True)
            return

        def make(table: pyarrow.Table, place: str) -> list[tuple[Any, ...]]:
            return transformer.transform_rows(make_page(table, self.shapes, by_row=True), place)

        yield from self._read(make, first_epoch)

    def _read(self, make: Callable[[pyarrow.Table, str], Rows], first_epoch: int) -> Iterator[Rows]:
        """Yield what `make` returns of each piece's rows and of their place, for messages; called in threads.

        Raises:
            DataError: an epoch of a reader without end has no rows.
        """
        pieces = self._find_pieces()
        footers: dict[int, Any] = {}

        def read_piece(epoch: int, number: int) -> Rows:
            piece = pieces[number]
            table = self._cast_table(self.files.read(piece, self.columns, footers))
            result = make(table, f"{self.files.files[piece.file].path}, row group {piece.group}")
            if self.shuffle_rows and _count(result) > 1:
                chance = numpy.random.default_rng([self.seed, epoch, number])
                result = _take_rows(result, chance.permutation(_count(result)))
            return result

        def generate_numbers() -> Iterator[tuple[int, int]]:
            for epoch in itertools.islice(itertools.count(first_epoch), self.num_epochs if pieces else 0):
                chosen = numpy.arange(len(pieces))
                if self.shuffle_row_groups:
                    numpy.random.default_rng([self.seed, epoch]).shuffle(chosen)
                for number in chosen.tolist():
                    yield epoch, number

        empty = 0
        for result in _read_ahead(read_piece, generate_numbers(), self.threads):
            empty = 0 if _count(result) else empty + 1
            if not empty:
                yield result
            elif self.num_epochs is None and empty >= len(pieces):
                raise DataError("transform_spec's function returned no rows for all row groups, and num_epochs=None.")

    def _find_pieces(self) -> list[Piece]:
        return [
            Piece(piece.file, piece.group, piece.start + compute_begin(piece.rows, self.parts, part), rows)
            for piece in self.files.find_pieces(self.shard, self.shards)
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


def _count(rows: Page | list[Any]) -> int:
    return len(rows) if isinstance(rows, list) else count_rows(rows)


def _take_rows(rows: Any, numbers: Array) -> Any:
    if isinstance(rows, list):
        return [rows[number] for number in numbers.tolist()]
    return {name: array[numbers] for name, array in rows.items()}


def _read_ahead(page: Callable[[int, int], Rows], numbers: Iterator[tuple[int, int]], threads: int) -> Iterator[Rows]:
    if not threads:
        yield from itertools.starmap(page, numbers)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="spark_estimator reader")
    begun: deque[Future[Rows]] = deque()
    try:
        for epoch, number in numbers:
            begun.append(pool.submit(page, epoch, number))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
