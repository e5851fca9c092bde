"""``horovod.spark.common.datamodule``: the class that reads a rank's batches from a store, with Horovod's keywords.

A class derived from `DataModule` is passed to an estimator as ``data_module=``: each rank makes an instance, and gets
its batches from ``train_data()`` and ``val_data()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy

from spark_estimator.data.petastorm import make_batch_reader

_Self = TypeVar("_Self", bound="DataModule")
_Batch = Mapping[str, Any]


class DataModule(ABC):
    """A rank's batches of a data set in a store. It is a context manager; batches are taken inside of it.

    Args:
        train_dir, val_dir: folders of Parquet files, for training and for validation.
        num_train_epochs: how many epochs are trained.
        has_val: whether there is data for validation.
        train_batch_size, val_batch_size: rows of a batch on this rank.
        shuffle: whether rows for training are shuffled.
        transform_fn: a function of a dict of one row that returns one; None: there is none.
        inmemory_cache_all: whether the rank may keep all rows in memory.
        cur_shard, shard_count: which part of the rows is this rank's, of how many.
        schema_fields: the columns; None: all.
        storage_options: for fsspec.
        steps_per_epoch_train, steps_per_epoch_val: batches that an epoch takes.
        verbose: whether it may print.
        kwargs: for subclasses.
    """

    short_name: str | None = None

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @abstractmethod
    def train_data(self) -> Iterable[Any]:
        """Batches for training: dicts of tensors [rows, ...] by column, or pairs of a dict and the label's tensor.

        They must last for all epochs.
        """

    @abstractmethod
    def val_data(self) -> Iterable[Any]:
        """Batches for validation, as of `train_data`."""


class PetastormDataModule(DataModule):
    """Horovod's default for PyTorch, over this package's reader of Parquet files: petastorm is not needed.

    Batches run on without end, in another order in each epoch.

    Args:
        reader_pool_type, train_reader_worker_count, val_reader_worker_count: no effect.
        random_seed: determines the orders.
        kwargs: of `DataModule`.
    """

    short_name = "petastorm"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 10,
        val_reader_worker_count: int = 10,
        random_seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reader_pool_type = reader_pool_type
        self.train_reader_worker_count = train_reader_worker_count
        self.val_reader_worker_count = val_reader_worker_count
        self.random_seed = random_seed
        self._loaders: list[Any] = []

    def train_data(self) -> Iterable[Any]:
        return self._batches(self.train_dir, self.train_batch_size, self.shuffle)

    def val_data(self) -> Iterable[Any]:
        return self._batches(self.val_dir, self.val_batch_size, False) if self.has_val else []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for loader in self._loaders:
            loader.__exit__(kind, error, trace)
        self._loaders.clear()

    def _batches(self, folder: str, batch_size: int, shuffle: bool) -> Iterable[Any]:
        from spark_estimator.data.petastorm import BatchedDataLoader  # needs PyTorch

        reader = make_batch_reader(
            folder,
            self.schema_fields,
            num_epochs=None,
            cur_shard=self.cur_shard,
            shard_count=self.shard_count,
            shuffle_rows=shuffle,
            shuffle_row_groups=shuffle,
            seed=self.random_seed,
            storage_options=self.storage_options,
        )
        function = self.transform_fn
        if function is None:
            loader = BatchedDataLoader(reader, batch_size)
        else:
            # The function has the rows as numpy values; its results become tensors.
            loader = BatchedDataLoader(reader, batch_size, transform_fn=numpy.asarray)
        self._loaders.append(loader)
        return loader if function is None else _Transformed(loader, function)


class _Transformed:
    """Batches whose rows a function has changed, one by one, in each epoch again."""

    def __init__(self, batches: Iterable[_Batch], function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._batches = batches
        self._function = function

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from torch.utils.data import default_collate

        for batch in self._batches:
            rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
            yield default_collate([dict(self._function(row)) for row in rows])
