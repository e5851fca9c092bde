"""Horovod's protocol for packages that subclass estimators and models: the methods that they override.

A subclass may call ``super().__init__()`` without arguments and set its parameters afterwards with ``_setDefault`` and
``_set``. `fit` trains by the backend of ``_get_or_create_backend()`` and returns
``get_model_class()(**_get_model_kwargs(model, history, optimizer, run_id, metadata))``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark.ml import Estimator, Model, Transformer
from pyspark.ml.param import Param, Params

from spark_estimator.estimators import params
from spark_estimator.estimators.backends import check_alone
from spark_estimator.estimators.params import TableParams
from spark_estimator.spark import SparkBackend

_Params = TypeVar("_Params", bound=TableParams)
_Model = TypeVar("_Model", bound=Transformer)

#: Parameters of Horovod's estimators without effect: name -> (the part of its accessors' names, Horovod's default).
_SHARED = {
    "categorical_cols": ("CategoricalCols", None),
    "compress_sparse_cols": ("CompressSparseCols", False),
    "continuous_cols": ("ContinuousCols", None),
    "inmemory_cache_all": ("InMemoryCacheAll", False),
    "mp_start_method": ("MpStartMethod", None),
    "partitions_per_process": ("PartitionsPerProcess", 10),
    "reader_pool_type": ("ReaderPoolType", "thread"),
    "shuffle_buffer_size": ("ShufflingBufferSize", None),
    "train_reader_num_workers": ("TrainReaderNumWorker", 2),
    "val_reader_num_workers": ("ValReaderNumWorker", 2),
}


def add_ineffective(
    rows: Mapping[str, tuple[str, Any]], reasons: Mapping[str, str]
) -> Callable[[type[_Params]], type[_Params]]:
    """Add parameters without effect to a class, which can be set and read; a setter warns with the reason.

    Args:
        rows: as `_SHARED`.
        reasons: by name.
    """

    def decorate(cls: type[_Params]) -> type[_Params]:
        cls._ineffective = {**cls._ineffective, **{name: row[1] for name, row in rows.items()}}
        cls._reasons = {**cls._reasons, **reasons}
        for name, (accessor, _) in rows.items():
            setattr(cls, name, Param(Params._dummy(), name, f"no effect: {reasons[name]}"))
            setter, getter = _make_accessors(name, reasons[name])
            for method, prefix in ((setter, "set"), (getter, "get")):
                method.__name__ = f"{prefix}{accessor}"
                method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
                setattr(cls, method.__name__, method)
        return cls

    return decorate


def _make_accessors(name: str, reason: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def setter(self: TableParams, value: Any) -> Any:
        params.warn_caller(f"{name} has no effect: {reason}.")
        return self._set(**{name: value})

    def getter(self: TableParams) -> Any:
        return self._value(name)

    setter.__doc__ = f"Sets {name}, which has no effect: {reason}. Returns self."
    getter.__doc__ = f"{name}, which has no effect: {reason}."
    return setter, getter


@add_ineffective(_SHARED, params.WITHOUT_EFFECT)
class EstimatorParams(TableParams):
    """Horovod's name for the parameters of all estimators. A subclass calls ``super().__init__()``."""


class HorovodEstimator(Estimator[_Model], EstimatorParams):
    """Horovod's name for the base class of all estimators, with the methods that subclasses override.

    Attributes:
        _model_kind: the class of the models that `fit` returns.
    """

    _model_kind: type[Any]

    def get_model_class(self) -> type[Any]:  # Horovod's name
        """Return the class of the model that `fit` returns: called with what `_get_model_kwargs` returns."""
        return self._model_kind

    def _get_model_kwargs(self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any) -> dict[str, Any]:
        """Return the keywords that the model is made with.

        Args:
            model: the framework's, trained.
            history: of its training.
            optimizer: PyTorch's, with its state after the training; None of the other frameworks' estimators.
            run_id: names the training.
            metadata: a `ModelMetadata`.
        """
        names = {row.name for row in self._model_kind._rows}
        keywords = {
            "history": history,
            "model": model,
            "optimizer": optimizer,
            "feature_columns": [name for field in metadata.inputs for name in field.names]
            or self._value("feature_cols"),
            "label_columns": self._value("label_cols"),
            "run_id": run_id,
            "_metadata": metadata,
            "training_params": {row.name: self._value(row.name) for row in self._rows if self._is_plain(row.name)},
        }
        passed_on = {row.name: self._value(row.name) for row in self._rows if row.name in _PASSED_ON}
        return {name: value for name, value in {**keywords, **passed_on}.items() if name in names}

    def _is_plain(self, name: str) -> bool:
        """Return whether a parameter was set, to what a file can hold, and a reader of `explainParams` expects."""
        value = self._value(name)
        parts = value if isinstance(value, (list, tuple)) else [value]
        return self.isSet(name) and all(each is None or isinstance(each, (bool, int, float, str)) for each in parts)

    def _get_or_create_backend(self) -> Any:
        """Return the backend of `fit`: an object with ``run(fn, args, kwargs, env)`` and ``num_processes()``.

        Raises:
            ValueError: num_proc and backend are both set.
        """
        backend, num_proc = self._value("backend"), self._value("num_proc")
        check_alone(backend, num_proc)
        return SparkBackend(num_proc, verbose=self._value("verbose")) if backend is None else backend

    def _fit_on_prepared_data(
        self,
        backend: Any,
        train_rows: int | None,
        val_rows: int | None,
        metadata: Any,
        avg_row_size: float | None,
        dataset_idx: int | None = None,
    ) -> Any:
        """Train, once the rows are there. A subclass that overrides it passes its arguments on.

        Args:
            backend: of `_get_or_create_backend` if a subclass overrides it; else the parameter.
            train_rows, val_rows, avg_row_size: None: not known, as no file is written.
            metadata: of the columns; it also holds the plan of the rows.
            dataset_idx: the number of the data set in the store; None: the one without a number, or none.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _fit_on_prepared_data().")

    def _has_checkpoint(self, run_id: str) -> bool:
        """Return whether the store has a checkpoint of a training."""
        store = self._value("store")
        path = None if store is None else store.get_checkpoint_path(run_id)
        return path is not None and bool(store.exists(path))


#: Parameters of an estimator that its model gets.
_PASSED_ON = {
    *("input_shapes", "loss", "loss_constructors", "decoders", "custom_objects"),
    *(row.name for row in (*params.PREDICTING, *params.INFERENCE)),
}


class ModelParams(TableParams):
    """Horovod's name for the parameters of all models. A subclass calls ``super().__init__()``."""

    @property
    def outputCols(self) -> Any:  # Horovod's name
        """Return output_cols."""
        return self.output_cols  # type: ignore[attr-defined]  # of the table

    def _get_metadata(self) -> Any:  # Horovod's name
        return self._value("_metadata")


class HorovodModel(Model, ModelParams):
    """Horovod's name for the base class of all models."""
