"""``horovod.spark.data_loaders.pytorch_data_loaders``: batches of tensors from a reader, also ahead in a thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from spark_estimator.data.batch_loader import AsyncDataLoaderMixin, BaseDataLoader
from spark_estimator.data.petastorm.loader import BatchedDataLoader
from spark_estimator.errors import DataError
from spark_estimator.observe.driver_log import announce


class _Loader(BaseDataLoader):
    """The base of all loaders here.

    Args:
        name, verbose: with verbose, a log line reports the begin of a pass.
        limit_step_per_epoch: batches of a pass; -1: all.
    """

    def __init__(self, name: str, limit_step_per_epoch: int, verbose: bool) -> None:
        super().__init__()
        self.name = name
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose

    def __len__(self) -> int:
        """Batches of a pass; 0: not known."""
        return max(self.limit_step_per_epoch, 0)

    def _limited(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.verbose:
            announce(f"[{self.name}]: begins a pass of {self.limit_step_per_epoch} batches")
        return batches if self.limit_step_per_epoch < 0 else itertools.islice(batches, self.limit_step_per_epoch)


class PytorchDataLoader(_Loader):
    """Each pass reads the reader's rows from the beginning.

    Args:
        reader: of ``make_reader`` or ``make_batch_reader``.
        batch_size: rows of a batch.
        shuffling_queue_capacity: no effect where the reader shuffles.
        name, limit_step_per_epoch, verbose: as in `_Loader`.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int,
        shuffling_queue_capacity: int,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        super().__init__(name, limit_step_per_epoch, verbose)
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def _iterate(self) -> Iterator[Any]:
        return self._limited(iter(BatchedDataLoader(self.reader, self.batch_size)))


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """Each pass continues where the one before has ended. The reader has ``num_epochs=None``.

    Raises:
        ValueError: the reader ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.reader.num_epochs is not None:
            raise ValueError(f"the reader has num_epochs={self.reader.num_epochs}; make it with num_epochs=None.")
        self.data_loader = BatchedDataLoader(self.reader, self.batch_size)
        self.iterator = iter(self.data_loader)

    def _iterate(self) -> Iterator[Any]:
        return self._limited(self.iterator)


class PytorchInmemDataLoader(_Loader):
    """The first rows, kept in memory.

    Args:
        reader: of ``make_reader`` or ``make_batch_reader``.
        batch_size: rows of a batch.
        num_epochs: no effect: there may be any number of passes.
        name, verbose: as in `_Loader`.
        shuffle: each pass has a new order.
        limit_step_per_epoch: batches of a pass, and how many are kept.

    Raises:
        DataError: the reader has no row.
        ValueError: `limit_step_per_epoch` is below 1.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int,
        num_epochs: int | None,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if limit_step_per_epoch < 1:
            raise ValueError(
                f"limit_step_per_epoch={limit_step_per_epoch}: give the number of batches to keep in memory."
            )
        super().__init__(name, limit_step_per_epoch, verbose)
        self.batch_size = batch_size
        self.num_epochs = num_epochs
        self.shuffle = shuffle
        kept = list(itertools.islice(iter(BatchedDataLoader(reader, batch_size)), limit_step_per_epoch))
        if not kept:
            raise DataError(f"the reader of {name!r} has no row to keep in memory.")
        self._columns = {column: torch.cat([batch[column] for batch in kept]) for column in kept[0]}

    def _iterate(self) -> Iterator[Any]:
        rows = len(next(iter(self._columns.values())))
        order = torch.randperm(rows) if self.shuffle else torch.arange(rows)
        batches = (
            {name: column[part] for name, column in self._columns.items()} for part in order.split(self.batch_size)
        )
        return self._limited(batches)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """A `PytorchDataLoader` that reads ahead in a thread."""


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """A `PytorchInfiniteDataLoader` that reads ahead in a thread."""


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """A `PytorchInmemDataLoader` that works ahead in a thread."""


class PetastormBatchedDataLoader(BatchedDataLoader):
    """A `BatchedDataLoader` with three more arguments, which have no effect, as in Horovod."""

    def __init__(
        self, name: str = "", limit_step_per_epoch: int = -1, verbose: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
