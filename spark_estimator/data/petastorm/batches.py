"""Batches of one shard of files as numpy arrays, gathered from rows that were decoded once; for readers and loaders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.rank.joined import Joined
from spark_estimator.data.rank.prefetch import Ahead
from spark_estimator.data.rank.shares import share


class ShardBatches:
    """All epochs of a shard in batches of exactly `batch_size` rows, one batch running into the next epoch.

    It may be iterated again, which reads all epochs once more. Each epoch has an order of its own.

    Args:
        rows: those of all shards.
        fields: the arrays of a batch.
        shard, shards: the number of the shard, and the number of shards.
        num_epochs: None: there is no end.
        seed: determines the orders; None: rows come in the order of the files.
        batch_size: the last batch may have fewer rows.
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
    ) -> None:
        self._rows = rows
        self._joined = Joined.of(fields)
        self._shard = shard
        self._shards = shards
        self._num_epochs = num_epochs
        self._seed = seed
        self._batch_size = batch_size
        self._matrices: tuple[Array, ...] | None = None
        self._epoch = 0
        self._ahead = Ahead()

    def __len__(self) -> int:
        """Batches of one iteration, the same on all shards.

        Raises:
            TypeError: there is no end.
        """
        if self._num_epochs is None:
            raise TypeError("with num_epochs=None there is no end: count steps, len(converter) // batch_size for one.")
        most_rows = share(self._rows.files.rows, self._shards, 0)
        return -(-most_rows * self._num_epochs // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yields arrays [rows, ...] by the names of the fields; each is a copy."""
        matrices = self._read()
        row_bytes = sum(field.row_bytes for field in self._joined.fields)

        def gathered(numbers: Array) -> list[Array]:
            return self._joined.split([matrix.take(numbers, axis=0) for matrix in matrices])

        for arrays in self._ahead.items(gathered, self._row_numbers(), row_bytes * self._batch_size):
            yield {field.name: array for field, array in zip(self._joined.fields, arrays, strict=True)}

    def release(self) -> None:
        """Gives up the rows; another iteration reads them again."""
        self._matrices = None

    def _read(self) -> tuple[Array, ...]:
        if self._matrices is None:
            self._matrices = self._rows.read(self._joined.stored, self._shard, self._shards)[0].matrices
        return self._matrices

    def _row_numbers(self) -> Iterator[Array]:
        """The rows of each batch, by their numbers in the shard."""
        count = 0
        held = numpy.zeros(0, numpy.int64)
        for _ in itertools.count() if self._num_epochs is None else range(self._num_epochs):
            order = self._order()
            start = self._batch_size - len(held) if len(held) else 0
            if start:
                held = numpy.concatenate([held, order[:start]])
                if len(held) < self._batch_size:
                    continue
                yield held
                count += 1
            stop = start + (len(order) - start) // self._batch_size * self._batch_size
            for first in range(start, stop, self._batch_size):
                yield order[first : first + self._batch_size]
                count += 1
            held = order[stop:]
        if len(held):
            yield held
            count += 1
        # The largest shard has a row more, which may have made a batch of its own.
        for _ in range(len(self) - count):
            yield numpy.zeros(1, numpy.int64)

    def _order(self) -> Array:
        numbers = numpy.arange(share(self._rows.files.rows, self._shards, self._shard))
        self._epoch += 1
        if self._seed is None:
            return numbers
        return self._ahead.order(numbers, (self._seed, self._shard), self._epoch - 1)
