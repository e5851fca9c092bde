"""``horovod.spark.lightning.datamodule``: a rank's rows from a store in Lightning's loaders, by Horovod's keywords."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_estimator.data.petastorm import TransformSpec, make_batch_reader, make_reader
from spark_estimator.data.prepared.loaders import PytorchInfiniteAsyncDataLoader, PytorchInmemAsyncDataLoader
from spark_estimator.lightning.flavours import preferred

_NAMES = {
    "lightning.pytorch": "PetastormDataModuleOfLightning",
    "pytorch_lightning": "PetastormDataModuleOfPytorchLightning",
}


@functools.cache
def data_module_class(flavour: str) -> Any:
    """The class for a package of Lightning's."""
    package: Any = importlib.import_module(flavour)

    class PetastormDataModule(package.LightningDataModule):
        """Horovod's default for Lightning, over this package's reader of Parquet files: petastorm is not needed.

        Args:
            train_dir, val_dir: folders of Parquet files, for training and for validation.
            num_train_epochs: how many epochs are trained.
            has_val: whether there is data for validation.
            train_batch_size, val_batch_size: rows of a batch on this rank.
            shuffle_size: 0: rows for training keep their order; else they are mixed.
            num_reader_epochs: of the readers; None: they do not end.
            reader_pool_type, reader_worker_count: of the readers.
            transform_spec: a function of a dict of one row that returns one; None: there is none.
            inmemory_cache_all: the batches of an epoch are read once, and kept.
            cur_shard, shard_count: which part of the rows is this rank's, of how many.
            schema_fields: the columns; None: all.
            storage_options: for fsspec.
            steps_per_epoch_train, steps_per_epoch_val: batches of an epoch.
            verbose: whether a line is printed when a pass begins.
            kwargs: for subclasses.
        """

        short_name = "petastorm"

        def __init__(
            self,
            train_dir: str,
            val_dir: str,
            num_train_epochs: int = 1,
            has_val: bool = True,
            train_batch_size: int = 32,
            val_batch_size: int = 32,
            shuffle_size: int = 1000,
            num_reader_epochs: int | None = None,
            reader_pool_type: str = "process",
            reader_worker_count: int = 2,
            transform_spec: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
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
            self.shuffle_size = shuffle_size
            self.num_reader_epochs = num_reader_epochs
            self.reader_pool_type = reader_pool_type
            self.reader_worker_count = reader_worker_count
            self.transform_spec = transform_spec
            self.inmemory_cache_all = inmemory_cache_all
            self.cur_shard = cur_shard
            self.shard_count = shard_count
            self.schema_fields = schema_fields
            self.storage_options = storage_options
            self.steps_per_epoch_train = steps_per_epoch_train
            self.steps_per_epoch_val = steps_per_epoch_val
            self.verbose = verbose
            self.train_reader: Any = None
            self.val_reader: Any = None

        def setup(self, stage: str | None = None) -> None:
            """Makes the readers."""
            if stage in (None, "fit"):
                self.train_reader = self._reader(self.train_dir, self.shuffle_size > 0)
                self.val_reader = self._reader(self.val_dir, False) if self.has_val else None

        def teardown(self, stage: str | None = None) -> None:
            """Ends the readers."""
            if stage in (None, "fit"):
                for reader in (self.train_reader, self.val_reader):
                    if reader is not None:
                        reader.stop()
                        reader.join()

        def train_dataloader(self) -> Any:
            """`steps_per_epoch_train` batches in each pass."""
            steps, shuffle = self.steps_per_epoch_train, self.shuffle_size > 0
            return self._loader("train dataloader", self.train_reader, self.train_batch_size, steps, shuffle)

        def val_dataloader(self) -> Any:
            """`steps_per_epoch_val` batches in each pass; none without rows for validation."""
            if self.val_reader is None:
                return []
            return self._loader("val dataloader", self.val_reader, self.val_batch_size, self.steps_per_epoch_val, False)

        def _reader(self, folder: str, shuffle: bool) -> Any:
            make: Any = make_batch_reader if self.transform_spec is None else make_reader
            return make(
                folder,
                self.schema_fields,
                num_epochs=self.num_reader_epochs,
                cur_shard=self.cur_shard,
                shard_count=self.shard_count,
                reader_pool_type=self.reader_pool_type,
                workers_count=self.reader_worker_count,
                transform_spec=None if self.transform_spec is None else TransformSpec(self.transform_spec),
                storage_options=self.storage_options,
                shuffle_rows=shuffle,
                shuffle_row_groups=shuffle,
            )

        def _loader(self, name: str, reader: Any, batch_size: int, steps: int, shuffle: bool) -> Any:
            arguments = {
                "reader": reader,
                "batch_size": batch_size,
                "name": name,
                "limit_step_per_epoch": steps,
                "verbose": self.verbose,
            }
            if self.inmemory_cache_all:
                return PytorchInmemAsyncDataLoader(num_epochs=self.num_train_epochs, shuffle=shuffle, **arguments)
            return PytorchInfiniteAsyncDataLoader(shuffling_queue_capacity=0, **arguments)

    # By this name pickle finds it on ranks, whichever of the packages they have imported.
    PetastormDataModule.__qualname__ = _NAMES[flavour]
    return PetastormDataModule


def __getattr__(name: str) -> object:
    if name == "PetastormDataModule":
        return data_module_class(preferred())
    for flavour, pickled_name in _NAMES.items():
        if name == pickled_name:
            return data_module_class(flavour)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
