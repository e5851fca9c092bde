"""`DataLoader`: batches with the shape of petastorm's, gathered from rows that were decoded once.

They are dicts of tensors in the columns' own types, of exactly `batch_size` rows but for the last one, and run on from
one epoch into the next. Unlike petastorm's, each epoch has all rows of the shard in an order of its own, not row groups
in a fixed one; shards have as many rows as each other, to the row; and all get as many batches, so that no rank waits
for another at the end.

A shard's rows stand in files without names on the host's disk (`spool`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy
import torch

from spark_estimator.data.fields import Array
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.petastorm.reader import Reader
from spark_estimator.data.preparation import Preparation
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.prefetch import Ahead
from spark_estimator.env import Settings


class DataLoader:
    """Batches of what a reader reads: dicts of tensors by the columns' names.

    It may be iterated again, which reads all epochs once more, in orders of their own. Tensors are copies. It is a
    context manager, too, at whose end the rows are given up.

    Args:
        reader: of `make_reader` or `make_batch_reader`.
        batch_size: rows of each batch; the last one may have fewer.
        transform_fn: makes a tensor of an array [batch, ...]; ``functools.partial(torch.as_tensor, device="cuda")``.
        shuffling_queue_capacity: has no effect: a reader that shuffles has mixed all rows already.

    Raises:
        DataError: a column cannot be read as tensors.
        ValueError: `batch_size` is below 1.
    """

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1; it was {batch_size}.")
        if shuffling_queue_capacity and reader.seed is None:
            raise ValueError("shuffling_queue_capacity: let the reader shuffle, shuffle_rows=True.")
        self.reader = reader
        self.batch_size = batch_size
        self._transform = transform_fn or torch.from_numpy
        self._joined = Joined.of(reader.fields())
        self._matrices: tuple[Array, ...] | None = None
        self._epoch = 0
        self._ahead = Ahead()

    def __len__(self) -> int:
        """Batches of one iteration, the same on all shards."""
        if self.reader.num_epochs is None:
            raise TypeError("with num_epochs=None there is no end: count steps, len(converter) // batch_size for one.")
        return -(-self.reader.most_rows * self.reader.num_epochs // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        matrices = self._read()
        row_bytes = sum(field.row_bytes for field in self._joined.fields)

        def taken(rows: Array) -> list[Array]:
            return self._joined.split([matrix.take(rows, axis=0) for matrix in matrices])

        for arrays in self._ahead.items(taken, self._numbers(), row_bytes * self.batch_size):
            yield {field.name: self._transform(array) for field, array in zip(self._joined.fields, arrays, strict=True)}

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._matrices = None

    def _read(self) -> tuple[Array, ...]:
        if self._matrices is None:
            reader = self.reader
            rows = FileRows(reader.files, Preparation(reader.columns), Settings.read().spool_folder or None)
            self._matrices = rows.read(self._joined.stored, reader.shard, reader.shards)[0].matrices
        return self._matrices

    def _numbers(self) -> Iterator[Array]:
        """The rows of each batch, by their numbers in the shard."""
        epochs = self.reader.num_epochs
        given = 0
        held = numpy.zeros(0, numpy.int64)
        for _ in itertools.count() if epochs is None else range(epochs):
            order = self._order()
            start = self.batch_size - len(held) if len(held) else 0
            if start:
                held = numpy.concatenate([held, order[:start]])
                if len(held) < self.batch_size:
                    continue
                yield held
                given += 1
            stop = start + (len(order) - start) // self.batch_size * self.batch_size
            for place in range(start, stop, self.batch_size):
                yield order[place : place + self.batch_size]
                given += 1
            held = order[stop:]
        if len(held):
            yield held
            given += 1
        # The largest shard has a row more, which may have made a batch of its own.
        for _ in range(len(self) - given):
            yield numpy.zeros(1, numpy.int64)

    def _order(self) -> Array:
        numbers = numpy.arange(self.reader.rows)
        seed = self.reader.seed
        self._epoch += 1
        if seed is None:
            return numbers
        return self._ahead.order(numbers, (seed, self.reader.shard), self._epoch - 1)


#: Petastorm's second loader, which is the faster one there; here they are one.
BatchedDataLoader = DataLoader
