"""Batches of one shard of files as numpy arrays, for loaders: from rows that were decoded once, or from row groups.

Columns of numbers of one length are read into the host's *spool* once, and each epoch gathers its batches from there,
in a new order. If there are other columns (texts, bytes, nulls, arrays of different lengths), the row groups are read
in each epoch, as a reader does. A transform is called in both cases, again in each epoch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.prefetch import Ahead
from spark_estimator.data.rank.shares import compute_share
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.pages import Page, count_rows, make_object_array, slice_page
from spark_estimator.extensions.petastorm.plan import ReadPlan
from spark_estimator.extensions.petastorm.stream import rebatch
from spark_estimator.extensions.petastorm.tensor_fields import are_plain, find_texts, make_tensor_fields
from spark_estimator.extensions.petastorm.transform import Transformer

# A transform is called for at most this number of bytes, or rows, at a time, but for a batch at least.
_CALL_BYTES = 2 << 20
_CALL_ROWS = 1 << 15
# Each call is long enough to be made ahead separately.
_AHEAD_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class BatchSource(Protocol):
    """All epochs of a shard in batches. It may be iterated again, which reads all epochs once more."""

    def __len__(self) -> int:
        """Return the number of batches of one iteration, the same on all shards.

        Raises:
            TypeError: there is no end, or a transform determines the number of rows.
        """

    def __iter__(self) -> Iterator[Page]:
        """Yield arrays [rows, ...] by the names of the columns; each may be written to."""

    def release(self) -> None:
        """Release the rows; another iteration reads them again."""


def make_batch_source(
    plan: ReadPlan, batch_size: int, capacity: int, numbers: bool, by_row: bool = False
) -> BatchSource:
    """Return a plan's rows in batches; see `Reader.make_batches`."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    for_torch = numbers and plan.transform is None
    texts = find_texts(plan)
    without_null = [name for name in plan.columns if not (by_row and name in texts)] if for_torch else []
    in_groups = RowGroupBatches(plan, batch_size, capacity, by_row, without_null)
    if not plan.files.rows or not (are_plain(plan) or (for_torch and not texts)):
        return in_groups
    if plan.transform is not None and not plan.batched:
        return in_groups
    try:
        fields = make_tensor_fields(plan)
        rows = FileRows(plan.files, RowEncoder(plan.columns))
        seed = plan.seed if plan.shuffles or capacity else None
        result = ShardBatches(
            rows, fields, plan.shard, plan.shards, plan.num_epochs, seed, batch_size, plan.transformer, plan
        )
        if plan.transform is not None or by_row:
            result.read()
    except DataError as reason:
        if plan.transform is None and not by_row:
            raise
        _log.info("row groups are read in each epoch, as they do not fit one array: %s", reason)
        return in_groups
    return result


class ShardBatches:
    """All epochs of a shard in batches of exactly `batch_size` rows, one batch running into the next epoch.

    Each epoch has a new order.

    Args:
        rows: those of all shards.
        fields: the arrays of a batch.
        shard, shards: the number of the shard, and the number of shards.
        num_epochs: None: there is no end.
        seed: determines the orders; None: rows are in the order of the files.
        batch_size: the last batch may have fewer.
        transformer: what is done to the rows.
        plan: None: columns of truth values become uint8.
    """

    def __init__(
        self,
        rows: FileRows,
        fields: Sequence[Field],
        shard: int,
        shards: int,
        num_epochs: int | None,
        seed: int | None,
        batch_size: int,
        transformer: Transformer | None = None,
        plan: ReadPlan | None = None,
    ) -> None:
        self._joined = Joined.from_fields(fields)
        self._rows = replace(rows, encoder=rows.encoder.with_fields(self._joined.stored))
        self._shard = shard
        self._shards = shards
        self._num_epochs = num_epochs
        self._seed = seed
        self._batch_size = batch_size
        self._transformer = transformer
        self._truths = {
            name for name, field in (plan.schema.fields if plan else {}).items() if field.numpy_dtype is numpy.bool_
        }
        self._names = [field.name for field in fields]
        self._matrices: tuple[Array, ...] | None = None
        self._call_batches = 1
        self._epoch = 0
        self._ahead = Ahead()

    def __len__(self) -> int:
        most_rows = compute_share(self._rows.files.rows, self._shards, 0)
        return count_steps(most_rows, self._num_epochs, self._batch_size, self._transformer)

    def __iter__(self) -> Iterator[Page]:
        matrices = self.read()

        def gather(numbers: Array) -> Page:
            page = dict(zip(self._names, self._joined.gather(matrices, numbers), strict=True))
            for name in self._truths:
                page[name] = page[name].view(bool)
            return page

        size, row_bytes = self._batch_size, sum(field.row_bytes for field in self._joined.fields)
        transformer = self._transformer
        if transformer is None:
            yield from self._ahead.make_items(gather, self._generate_row_numbers(), row_bytes * size)
            return

        description = f"shard {self._shard} of {self._shards}"
        called = transformer

        def transform(numbers: Array) -> Page:
            arrays = gather(numbers)
            return called.transform_page(
                arrays, {name: array for name, array in arrays.items() if array.ndim > 1}, description
            )

        most_batches = max(1, min(_CALL_ROWS, _CALL_BYTES // row_bytes) // size)
        pages = self._ahead.make_items(transform, self._generate_calls(most_batches), _AHEAD_BYTES)
        batches = rebatch((page for page in pages if count_rows(page)), size)
        rows, most_rows = (compute_share(self._rows.files.rows, self._shards, shard) for shard in (self._shard, 0))
        yield from equalize_steps(batches, rows, most_rows, self._num_epochs, size)

    def _generate_row_numbers(self) -> Iterator[Array]:
        """Yield the rows of each batch, by their numbers in the shard."""
        count = 0
        for page in rebatch(({"row": order} for order in self._generate_orders()), self._batch_size):
            yield page["row"]
            count += 1
        # The largest shard has one more row, which may have formed a separate batch.
        for _ in range(count, 0 if self._num_epochs is None else len(self)):
            yield numpy.zeros(1, numpy.int64)

    def _generate_calls(self, most_batches: int) -> Iterator[Array]:
        """Yield the row numbers of each call of the transform: of one batch, then twice as many up to the most."""
        for order in self._generate_orders():
            start = 0
            while start < len(order):
                stop = start + self._call_batches * self._batch_size
                yield order[start:stop]
                start, self._call_batches = stop, min(2 * self._call_batches, most_batches)

    def release(self) -> None:
        self._matrices = None

    def read(self) -> tuple[Array, ...]:
        """Return the rows of the shard.

        Raises:
            DataError: a value cannot be used.
        """
        if self._matrices is None:
            self._matrices = self._rows.read(self._shard, self._shards)[0].matrices
        return self._matrices

    def _generate_orders(self) -> Iterator[Array]:
        """Yield [rows] of the shard's rows, by their numbers in it, for each epoch."""
        numbers = numpy.arange(compute_share(self._rows.files.rows, self._shards, self._shard))
        for _ in itertools.count() if self._num_epochs is None else range(self._num_epochs):
            self._epoch += 1
            if self._seed is None:
                yield numbers
            else:
                yield self._ahead.draw_order(numbers, (self._seed, self._shard), self._epoch - 1)


class RowGroupBatches:
    """All epochs of a shard in batches of exactly `batch_size` rows, from row groups that are read in each epoch.

    Args:
        plan: which rows.
        batch_size: the last batch may have fewer.
        capacity: each batch is drawn from this number of rows; 0: rows are in the order of the reader.
        by_row: arrays of a column may differ in length: they are objects.
        without_null: columns in which null is an error.
    """

    def __init__(
        self, plan: ReadPlan, batch_size: int, capacity: int, by_row: bool = False, without_null: Collection[str] = ()
    ) -> None:
        self._plan = plan
        self._by_row = by_row
        self._without_null = without_null
        self._batch_size = batch_size
        self._capacity = capacity
        self._epoch = 0

    def __len__(self) -> int:
        plan = self._plan
        return count_steps(plan.most_rows, plan.num_epochs, self._batch_size, plan.transformer)

    def __iter__(self) -> Iterator[Page]:
        plan = self._plan
        first, self._epoch = self._epoch, self._epoch + (plan.num_epochs or 1)
        pages = plan.read_pages(first, self._by_row, self._without_null)
        if self._by_row:
            pages = map(_split_rows, pages)
        batches = rebatch(pages, self._batch_size, self._capacity, plan.seed)
        yield from equalize_steps(batches, plan.rows, plan.most_rows, plan.num_epochs, self._batch_size)

    def release(self) -> None:
        """Do nothing: nothing is kept."""


def _split_rows(page: Page) -> Page:
    """Return a page whose columns of arrays are objects: those of another page may have another length."""
    return {name: make_object_array(list(array)) if array.ndim > 1 else array for name, array in page.items()}


def count_steps(most_rows: int, num_epochs: int | None, batch_size: int, transformer: Transformer | None = None) -> int:
    """Return the number of batches of the largest shard.

    Raises:
        TypeError: there is no end, or the transform determines the number of rows.
    """
    if transformer is not None and not transformer.keeps_rows:
        raise TypeError("the number of rows is known after transform_spec's function has returned them: count steps.")
    if num_epochs is None:
        raise TypeError("with num_epochs=None there is no end: count steps, len(converter) // batch_size for one.")
    return -(-most_rows * num_epochs // batch_size)


def equalize_steps(
    batches: Iterator[Page], rows: int, most_rows: int, num_epochs: int | None, batch_size: int
) -> Iterator[Page]:
    """Yield the batches, and one more of one row if the largest shard's odd row forms a separate batch.

    A transform that has changed the number of rows is left alone: how many batches other shards have is not
    known.

    Args:
        rows: of this shard, in one epoch.
    """
    count = steps = 0
    last: Page = {}
    for batch in batches:
        count, steps, last = count + count_rows(batch), steps + 1, batch
        yield batch
    if num_epochs is None or not steps or count != rows * num_epochs:
        return
    for _ in range(count_steps(most_rows, num_epochs, batch_size) - steps):
        yield {name: array.copy() for name, array in slice_page(last, 0, 1).items()}
