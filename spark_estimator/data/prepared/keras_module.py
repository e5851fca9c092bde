"""``horovod.spark.keras.datamodule``: a rank's rows from a store as tf.data datasets, with Horovod's keywords."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from spark_estimator.collectives import context
from spark_estimator.data.petastorm import TransformSpec, make_batch_reader, make_reader
from spark_estimator.data.prepared.module import DataModule


class PetastormDataModule(DataModule):
    """Horovod's default for Keras, over this package's reader of Parquet files: petastorm is not needed.

    Readers are made when the context begins, for this rank's part of the rows; outside a job for `cur_shard`.

    Args:
        reader_pool_type, train_reader_worker_count, val_reader_worker_count: of the readers.
        make_dataset: called as ``make_dataset(reader, batch_size, is_batch_reader, shuffle=, cache=)``. None: batches
            of named tuples, which end after an epoch.
        random_seed: determines the order of rows for training.
        kwargs: of `DataModule`.

    Attributes:
        is_batch_reader: whether readers give many rows at a time; with `transform_fn` they give single ones.
    """

    short_name = "petastorm"

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        make_dataset: Callable[..., Any] | None = None,
        random_seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reader_pool_type = reader_pool_type
        self.train_reader_worker_count = train_reader_worker_count
        self.val_reader_worker_count = val_reader_worker_count
        self.make_dataset = make_dataset or _dataset
        self.random_seed = random_seed
        self.is_batch_reader = self.transform_fn is None
        self.train_reader: Any = None
        self.val_reader: Any = None

    def __enter__(self) -> PetastormDataModule:
        super().__enter__()
        self.train_reader = self._reader(self.train_dir, self.train_reader_worker_count, self.shuffle)
        if self.has_val:
            self.val_reader = self._reader(self.val_dir, self.val_reader_worker_count, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in (self.train_reader, self.val_reader):
            if reader is not None:
                reader.stop()
                reader.join()
        super().__exit__(kind, error, trace)

    def train_data(self) -> Any:
        """The data set that `make_dataset` makes from the rows for training."""
        return self.make_dataset(
            self.train_reader,
            self.train_batch_size,
            self.is_batch_reader,
            shuffle=self.shuffle,
            cache=self.inmemory_cache_all,
        )

    def val_data(self) -> Any:
        """The data set that `make_dataset` makes from the rows for validation; None: there are none."""
        if self.val_reader is None:
            return None
        return self.make_dataset(
            self.val_reader, self.val_batch_size, self.is_batch_reader, shuffle=False, cache=self.inmemory_cache_all
        )

    def _reader(self, folder: str, workers: int, shuffle: bool) -> Any:
        shard, shards = self.cur_shard, self.shard_count
        if context.is_initialized():
            shard, shards = context.rank(), context.size()
        make: Any = make_batch_reader if self.is_batch_reader else make_reader
        return make(
            folder,
            self.schema_fields,
            num_epochs=1,
            cur_shard=shard,
            shard_count=shards,
            reader_pool_type=self.reader_pool_type,
            workers_count=workers,
            transform_spec=None if self.transform_fn is None else TransformSpec(self.transform_fn),
            storage_options=self.storage_options,
            shuffle_rows=shuffle,
            shuffle_row_groups=shuffle,
            seed=self.random_seed,
        )


def _dataset(reader: Any, batch_size: int, is_batch_reader: bool, shuffle: bool, cache: bool) -> Any:
    from spark_estimator.data.petastorm.tf_datasets import make_petastorm_dataset  # needs TensorFlow

    rows = make_petastorm_dataset(reader)
    batches = (rows.unbatch() if is_batch_reader else rows).batch(batch_size)
    return batches.cache() if cache else batches
