"""``data_module=`` with Horovod's keywords: the user's class reads a rank's batches from the folders of a store.

`fit` writes the DataFrame to the store first, as Horovod does. Each rank then makes an object of the class.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from spark_estimator.data.fields import Field
from spark_estimator.data.prepared.data_sets import get_simple_meta_from_parquet, prepare_data
from spark_estimator.data.prepared.module import DataModule, PetastormDataModule
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_estimator.estimators.estimator import TableEstimator
    from spark_estimator.estimators.train_spec import TrainSpec


@dataclass(frozen=True)
class ModulePlan:
    """A data module that the ranks are to make. It is pickled.

    Attributes:
        kind: its class.
        keywords: those of its constructor that are the same on all ranks.
        train_rows, val_rows: in its folders.
    """

    kind: type
    keywords: Mapping[str, Any]
    train_rows: int
    val_rows: int

    def made(self, rank: int, size: int, train_steps: int | None, validation_steps: int | None) -> Any:
        """The rank's data module.

        Args:
            train_steps, validation_steps: batches of an epoch; None: those that the rows make, as in Horovod: whole
                batches for training, all rows for validation.
        """
        keywords = {
            **self.keywords,
            "cur_shard": rank,
            "shard_count": size,
            "steps_per_epoch_train": self.train_steps(size, train_steps),
            "steps_per_epoch_val": self.validation_steps(size, validation_steps),
        }
        parameters = inspect.signature(self.kind).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            keywords = {name: value for name, value in keywords.items() if name in parameters}
        return self.kind(**keywords)

    def train_steps(self, size: int, most: int | None) -> int:
        """The number of training batches per epoch on each of `size` ranks; at least one."""
        return most or max(1, self.train_rows // (self.keywords["train_batch_size"] * size))

    def validation_steps(self, size: int, most: int | None) -> int:
        """The number of validation batches on each of `size` ranks."""
        return most or math.ceil(self.val_rows / (self.keywords["val_batch_size"] * size))


def takes_folders(kind: Any) -> bool:
    """Whether a data module is a class of the user's, with Horovod's keywords."""
    if isinstance(kind, ModulePlan) or not isinstance(kind, type) or kind is PetastormDataModule:
        return False
    try:
        return issubclass(kind, DataModule) or "train_dir" in inspect.signature(kind).parameters
    except ValueError:  # a class of Python's own, without a signature
        return False


def checked(name: str, value: Any) -> Any:
    """The parameter `data_module` of an estimator that takes Horovod's classes.

    Raises:
        TypeError: it is neither None nor such a class.
    """
    if value is None or value is PetastormDataModule or isinstance(value, ModulePlan) or takes_folders(value):
        return value
    raise TypeError(
        f"{name} must be a class derived from horovod.spark.common.datamodule.DataModule; got {value!r}. "
        "NVTabular is not supported."
    )


@contextlib.contextmanager
def written(estimator: TableEstimator[Any], dataset: DataFrame, size: int) -> Iterator[int]:
    """Writes the rows that an estimator trains on to its store, for as long as the context lasts.

    Yields:
        The number of the data set.

    Raises:
        ValueError: there is no store, or parameters contradict each other.
    """
    value = estimator._value
    labels, weight, validation = list(value("label_cols")), value("sample_weight_col"), value("validation")
    roles = {*labels, weight, validation}
    features = value("feature_cols") or [name for name in dataset.columns if name not in roles]
    store = estimator._data_store("data_module=")
    files = value("partitions_per_process")
    with prepare_data(
        size, store, dataset, labels, features, validation, weight, False, files, value("verbose")
    ) as index:
        yield index


def plan_of(estimator: TableEstimator[Any], dataset_idx: int | None) -> ModulePlan:
    """The plan for a data set in the estimator's store.

    Raises:
        ValueError: there is no store or no data; or the estimator changes rows, which the class does itself.
    """
    value = estimator._value
    kind = value("data_module")
    refused = ("transformation_fn", "categories", "checkpoint_every_steps", "checkpoint_every_seconds", "cache_bytes")
    for name in refused:
        if value(name) is not None:
            raise ValueError(f"{name} and data_module={kind.__name__} can't be combined.")
    store = estimator._data_store("data_module=")
    labels, weight, features = list(value("label_cols")), value("sample_weight_col"), value("feature_cols")
    if features is None:
        names = store.get_parquet_dataset(store.get_train_data_path(dataset_idx)).schema.names
        features = [name for name in names if name not in {*labels, weight}]
    train_rows, val_rows, _, _ = get_simple_meta_from_parquet(store, labels, features, weight, dataset_idx)
    has_val = bool(value("validation")) and val_rows > 0
    keywords = {
        "label_cols": labels,
        "continuous_cols": value("continuous_cols"),
        "categorical_cols": value("categorical_cols"),
        "random_seed": value("random_seed"),
        "seed": value("random_seed"),
        "train_dir": _url(store.get_train_data_path(dataset_idx)),
        "val_dir": _url(store.get_val_data_path(dataset_idx)),
        "num_train_epochs": value("epochs"),
        "has_val": has_val,
        "train_batch_size": value("batch_size"),
        "val_batch_size": value("val_batch_size") or value("batch_size"),
        "shuffle": value("shuffle"),
        "reader_pool_type": value("reader_pool_type"),
        "train_reader_worker_count": value("train_reader_num_workers"),
        "val_reader_worker_count": value("val_reader_num_workers"),
        "reader_worker_count": value("train_reader_num_workers"),
        "transform_fn": None,
        "inmemory_cache_all": value("inmemory_cache_all"),
        "schema_fields": [*features, *labels, *([weight] if weight else [])],
        "storage_options": store.storage_options,
        "verbose": bool(value("verbose")),
    }
    return ModulePlan(kind, keywords, train_rows, val_rows if has_val else 0)


def _url(path: str) -> str:
    """A store's path as Horovod passes it to data modules: with a scheme."""
    return path if "://" in path else f"file://{path}"


@dataclass(frozen=True)
class ModuleRows(EpochRows):
    """A rank's rows from a data module, batch by batch.

    Attributes:
        counts, rank: as of `EpochRows`.
        incoming: its batches, of all epochs: dicts of arrays or tensors by column, or pairs of a dict and the labels.
        fields: of a batch.
        labels: the label columns.
        source: where the batches come from, for messages.
    """

    counts: tuple[int, ...]
    rank: int
    incoming: Iterator[Any]
    fields: tuple[Field, ...]
    labels: tuple[str, ...]
    source: str

    @classmethod
    def of(
        cls, batches: Any, spec: TrainSpec, source: str, rank: int, size: int, steps: int, batch_size: int
    ) -> ModuleRows:
        """`steps` batches an epoch, of `batch_size` rows, on each rank."""
        names = tuple(name for label in spec.labels for name in label.names)
        counts = (steps * batch_size,) * size
        return cls(
            counts,
            rank,
            incoming=iter(batches),
            fields=spec.fields,
            labels=names,
            source=source,
        )

    def batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        """The next batches: as many as an epoch has. The data module orders its rows itself.

        Raises:
            DataError: the data module has no more batches, or a batch lacks a column.
        """
        for step in range(first, self.plan(batch_size, most_steps).steps):
            try:
                batch = next(self.incoming)
            except StopIteration:
                raise DataError(
                    f"{self.source} ended after {step} batches of an epoch on rank {self.rank}: its batches must last "
                    "for all epochs."
                ) from None
            matrices = tuple(self._matrix(batch, each) for each in self.fields)
            yield Batch(matrices, 1.0, len(matrices[0]))

    def _matrix(self, batch: Any, each: Field) -> Any:
        columns = batch
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            columns = {**dict.fromkeys(self.labels, batch[1]), **batch[0]}
        missing = [name for name in each.names if name not in columns]
        if missing:
            raise DataError(f"a batch of {self.source} has the columns {list(columns)}, and no {missing[0]!r}.")
        arrays = [columns[name] for name in each.names]
        parts = [numpy.asarray(array.cpu() if hasattr(array, "cpu") else array) for array in arrays]
        joined = numpy.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        return numpy.ascontiguousarray(joined, each.stored or each.dtype)


@contextlib.contextmanager
def opened(spec: TrainSpec, rank: int, size: int) -> Iterator[tuple[ModuleRows, ModuleRows | None] | None]:
    """On a rank: the rows from the training's data module; None if the training has no data module."""
    plan = spec.module
    if plan is None:
        yield None
        return
    with plan.made(rank, size, spec.train_steps, spec.validation_steps) as module:
        source = f"{plan.kind.__name__}.train_data()"
        steps = plan.train_steps(size, spec.train_steps)
        rows = ModuleRows.of(module.train_data(), spec, source, rank, size, steps, spec.batch_size)
        held = None
        if plan.val_rows:
            source = f"{plan.kind.__name__}.val_data()"
            steps = plan.validation_steps(size, spec.validation_steps)
            held = ModuleRows.of(module.val_data(), spec, source, rank, size, steps, spec.val_batch_size)
        yield rows, held
