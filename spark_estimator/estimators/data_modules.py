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
from spark_estimator.data.prepared import keras_module
from spark_estimator.data.prepared.data_sets import get_simple_meta_from_parquet, prepare_data
from spark_estimator.data.prepared.module import DataModule, PetastormDataModule
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_estimator.estimators.estimator import TableEstimator
    from spark_estimator.estimators.train_spec import TrainSpec


#: Horovod's defaults: in place of them, this package reads the rows in its own way.
_DEFAULTS = (PetastormDataModule, keras_module.PetastormDataModule)


@dataclass(frozen=True)
class ModulePlan:
    """A data module that the ranks are to make. It is pickled.

    Attributes:
        kind: its class.
        keywords: those of its constructor that are the same on all ranks.
        train_rows, val_rows: in its folders.
        rounds_up: an epoch's last batch may have fewer rows than the others, as in Horovod's `KerasEstimator`.
    """

    kind: type
    keywords: Mapping[str, Any]
    train_rows: int
    val_rows: int
    rounds_up: bool = False

    def made(self, rank: int, size: int, train_steps: int | None, validation_steps: int | None) -> Any:
        """The rank's data module.

        Args:
            train_steps, validation_steps: batches of an epoch; None: those that the rows make, as in Horovod: whole
                batches for training (all rows if the plan `rounds_up`), all rows for validation.
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
        rows = self.keywords["train_batch_size"] * size
        return most or (math.ceil(self.train_rows / rows) if self.rounds_up else max(1, self.train_rows // rows))

    def validation_steps(self, size: int, most: int | None) -> int:
        """The number of validation batches on each of `size` ranks."""
        return most or math.ceil(self.val_rows / (self.keywords["val_batch_size"] * size))


def takes_folders(kind: Any) -> bool:
    """Whether a data module is a class of the user's, with Horovod's keywords."""
    if isinstance(kind, ModulePlan) or not isinstance(kind, type) or kind in _DEFAULTS:
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
    if value is None or isinstance(value, ModulePlan) or value in _DEFAULTS or takes_folders(value):
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


def plan_of(estimator: TableEstimator[Any], dataset_idx: int | None, *, rounds_up: bool = False) -> ModulePlan:
    """The plan for a data set in the estimator's store.

    Args:
        rounds_up: as of `ModulePlan`.

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
    return ModulePlan(kind, keywords, train_rows, val_rows if has_val else 0, rounds_up)


def _url(path: str) -> str:
    """A store's path as Horovod passes it to data modules: with a scheme."""
    return path if "://" in path else f"file://{path}"


class ModuleBatches:
    """The batches of a data module. At their end they begin again, unless they are an iterator."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._left = self._begun()
        self._ahead: list[Any] = []

    def first(self) -> Any:
        """The batch that `next` will return."""
        if not self._ahead:
            self._ahead.append(self.next())
        return self._ahead[0]

    def next(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: there is none.
        """
        if self._ahead:
            return self._ahead.pop()
        try:
            return next(self._left)
        except StopIteration:
            if self._left is self._batches:
                raise
        self._left = self._begun()
        return next(self._left)

    def _begun(self) -> Iterator[Any]:
        if hasattr(self._batches, "__iter__"):
            return iter(self._batches)
        return (self._batches[place] for place in range(len(self._batches)))  # a keras.utils.PyDataset


@dataclass(frozen=True)
class ModuleRows(EpochRows):
    """A rank's rows from a data module, batch by batch.

    A batch has arrays or tensors by column, as a dict or a named tuple; or it is a tuple of features, labels and
    perhaps weights. Each of these has arrays by column, one array for each column, or one of all columns.

    Attributes:
        counts, rank: as of `EpochRows`.
        incoming: its batches, of all epochs.
        inputs, labels, weight: the fields of a batch.
        source: where the batches come from, for messages.
    """

    counts: tuple[int, ...]
    rank: int
    incoming: ModuleBatches
    inputs: tuple[Field, ...]
    labels: tuple[Field, ...]
    weight: Field | None
    source: str

    @classmethod
    def of(
        cls, batches: Any, spec: TrainSpec, source: str, rank: int, size: int, steps: int, batch_size: int
    ) -> ModuleRows:
        """`steps` batches an epoch, of `batch_size` rows, on each rank."""
        counts = (steps * batch_size,) * size
        return cls(counts, rank, ModuleBatches(batches), spec.inputs, spec.labels, spec.weight, source)

    def sample(self) -> Batch:
        """See `EpochRows.sample`."""
        try:
            return self._batch(self.incoming.first())
        except StopIteration:
            raise DataError(f"{self.source} has no batches on rank {self.rank}.") from None

    def batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        """The next batches: as many as an epoch has. The data module orders its rows itself.

        Raises:
            DataError: the data module has no more batches, or a batch lacks a column.
        """
        for step in range(first, self.plan(batch_size, most_steps).steps):
            try:
                batch = self.incoming.next()
            except StopIteration:
                raise DataError(
                    f"{self.source} ended after {step} batches of an epoch on rank {self.rank}: its batches must last "
                    "for all epochs."
                ) from None
            yield self._batch(batch)

    def _batch(self, batch: Any) -> Batch:
        columns = self._columns(batch)
        fields = (*self.inputs, *self.labels, *([self.weight] if self.weight else []))
        matrices = tuple(self._matrix(columns, each) for each in fields)
        return Batch(matrices, 1.0, len(matrices[0]))

    def _columns(self, batch: Any) -> Mapping[str, Any]:
        if not isinstance(batch, (tuple, list)) or hasattr(batch, "_asdict"):
            return self._by_name(batch, ())
        if not 2 <= len(batch) <= 3:
            raise DataError(
                f"a batch of {self.source} is a tuple of {len(batch)}: features and labels, or those and weights, are "
                "needed."
            )
        columns = {**self._by_name(batch[1], self.labels), **self._by_name(batch[0], self.inputs)}
        if self.weight is not None and len(batch) == 3:
            weights = batch[2]
            while isinstance(weights, (tuple, list, Mapping)):  # one for each output, which are the same
                weights = next(iter(weights.values() if isinstance(weights, Mapping) else weights))
            columns[self.weight.names[0]] = weights
        return columns

    def _by_name(self, part: Any, fields: tuple[Field, ...]) -> Mapping[str, Any]:
        """The arrays of a part of a batch, by column."""
        if hasattr(part, "_asdict"):
            part = part._asdict()
        if isinstance(part, Mapping):
            return part
        widths = {name: width for each in fields for name, width in zip(each.names, each.widths, strict=True)}
        arrays = list(part) if isinstance(part, (tuple, list)) else [part]
        if len(arrays) == 1 != len(widths):
            joined = _flat(arrays[0])
            if joined.shape[1] == sum(widths.values()):
                arrays = numpy.split(joined, numpy.cumsum(list(widths.values()))[:-1], axis=1)
        if len(arrays) != len(widths):
            raise DataError(f"a batch of {self.source} has {len(arrays)} arrays for the columns {list(widths)}.")
        return dict(zip(widths, arrays, strict=True))

    def _matrix(self, columns: Mapping[str, Any], each: Field) -> Any:
        missing = [name for name in each.names if name not in columns]
        if missing:
            raise DataError(f"a batch of {self.source} has the columns {list(columns)}, and no {missing[0]!r}.")
        joined = numpy.concatenate([_flat(columns[name]) for name in each.names], axis=1)
        return numpy.ascontiguousarray(joined, each.stored or each.dtype)


def _flat(array: Any) -> Any:
    """[rows, values] of an array or tensor [rows, ...]."""
    plain = numpy.asarray(array.cpu() if hasattr(array, "cpu") else array)
    return plain.reshape(len(plain), -1)


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
