"""`DataLoader`: batches with the shape of petastorm's, gathered from rows that were decoded once.

They are dicts of tensors in the columns' own types, of exactly `batch_size` rows but for the last one, and run on from
one epoch into the next. Unlike petastorm's, each epoch has all rows of the shard in an order of its own, not row groups
in a fixed one; shards have as many rows as each other, to the row; and all get as many batches, so that no rank waits
for another at the end.

A shard's rows are kept in files without names on the host's disk (`spool`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from spark_estimator.data.petastorm.reader import Reader


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
        self._batches = reader.batches(batch_size)

    def __len__(self) -> int:
        """Batches of one iteration, the same on all shards."""
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches:
            yield {name: self._transform(array) for name, array in batch.items()}

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batches.release()


#: Petastorm's second loader, which is the faster one there; here they are one.
BatchedDataLoader = DataLoader
