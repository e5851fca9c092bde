"""The base of the estimators of all frameworks: ``fit(df)`` and ``fit_on_parquet()``, on processes that Spark starts.

A framework's `FrameworkTraining` checks the parameters, tries the model, trains on the ranks and makes the model from
their result.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLWritable

from spark_estimator.data.materialize import find_data_set
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.env import Settings
from spark_estimator.estimators import backends, checks
from spark_estimator.estimators.inference.prediction_columns import OutputKind
from spark_estimator.estimators.metadata import ModelMetadata, make_column_facts
from spark_estimator.estimators.mlflow_options import MlflowOptions
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.params import warn_caller
from spark_estimator.estimators.persistence import model_transfer, run_lease
from spark_estimator.estimators.persistence.checkpoint import discard_partials
from spark_estimator.estimators.persistence.spark_ml import FolderReader, FolderWriter
from spark_estimator.estimators.protocol import HorovodEstimator
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_plan import RowPlan, plan_files, plan_frame
from spark_estimator.estimators.rows.row_source import choose_source
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.tracking.recorded_metrics import RecordedMetrics
from spark_estimator.estimators.tracking.run import TrackedRun, check_installed, get_active_run_id
from spark_estimator.estimators.tracking.signature import Features
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.launch.spark.elastic.decommissioning import expects_warnings
from spark_estimator.launch.spark.errors import raise_task_errors
from spark_estimator.launch.spark.slots import check_connect
from spark_estimator.observe.training_records import TakeRecord
from spark_estimator.store import FilesystemStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

_Model = TypeVar("_Model", bound=TableModel)


class FrameworkTraining(Protocol):
    """A framework's side of one training, on the driver; made of checked parameters, before anything starts.

    Attributes:
        labels: the label columns.
        output_kinds: [labels] what each output is, as `prediction_columns` has them.
        trial: tries the model on the first rows.
        train: what every rank runs; is pickled.
        framework: `TrainSpec.framework`.
        recovers: `train` continues after the loss of a rank in an elastic job whose ranks read rows of files: within a
            step, or from the last checkpoint (`restarting`).
        saves_within: `train` can continue from a checkpoint within an epoch.
    """

    labels: list[str]
    output_kinds: Sequence[OutputKind]
    trial: Trial
    train: Callable[[TrainSpec], TrainResult | None]
    framework: Any
    recovers: bool
    saves_within: bool

    @property
    def state_bytes(self) -> int:
        """Return how many bytes the numbers are that the model is saved with."""

    def compute_digest(self) -> str:
        """Return a digest of the model's numbers before the training; empty if a run's identity has it."""

    def load_trained(self, state: bytes) -> tuple[Any, Any]:
        """Return a copy of the framework's model with the weights of rank 0's result; the user's model is not changed.

        Also the optimizer of its parameters if rank 0's result has the optimizer's state, else None.
        """


class TrainingMetadata(ModelMetadata):
    """A model's metadata before the training, with what `_fit_on_prepared_data` trains by.

    Attributes:
        training: the framework's side.
        size: the number of ranks, or what chooses it.
        plan: of the rows.
        features: the columns that the model predicts from, for MLflow; None: nothing is logged.

    Args:
        zone: the session's time zone; files are read without a session.
    """

    def __init__(
        self, training: FrameworkTraining, size: Any, plan: RowPlan, features: Features | None = None, zone: str = "UTC"
    ) -> None:
        columns, fields = plan.columns, plan.fields
        widths = {name: width for field in fields.all for name, width in zip(field.names, field.widths, strict=True)}
        label_types = ["array<float>" if column.kind == "binary" else column.kind for column in columns.labels]
        facts = make_column_facts(columns.fed, widths)
        # Without labels the batches are what a function returned, and the columns of `transform` are others.
        inputs = fields.inputs if fields.labels else ()
        super().__init__(facts, inputs, fields.outputs, label_types, training.output_kinds, zone)
        self.training = training
        self.size = size
        self.plan = plan
        self.features = features

    def to_model_metadata(self) -> ModelMetadata:
        """Return the model's copy of this metadata."""
        return ModelMetadata(self, self.inputs, self.outputs, self.label_types, self.output_kinds, self.zone)


class TableEstimator(HorovodEstimator[_Model], MLWritable, MLReadable["TableEstimator[Any]"]):
    """Trains a model on the rows of a DataFrame: a subclass is a framework's, and decorated with `add_params`."""

    #: The prefix of the run_id of a training whose user names none.
    _prefix: ClassVar[str]
    _model_kind: type[_Model]

    @abstractmethod
    def _make_training(self) -> FrameworkTraining:
        """Return the framework's side, of the parameters as they are now.

        Raises:
            TypeError, ValueError: one cannot be used.
        """

    @abstractmethod
    def _write_files(self, folder: Path) -> None:
        """Put the estimator's files into a new folder."""

    @overload
    def fit(self, dataset: DataFrame, params: Mapping[Param[Any], Any] | None = None) -> _Model: ...
    @overload
    def fit(self, dataset: DataFrame, params: Sequence[Mapping[Param[Any], Any]]) -> list[_Model]: ...
    @overload
    def fit(self, *, df: DataFrame, params: Mapping[Param[Any], Any] | None = None) -> _Model: ...
    @overload
    def fit(self, *, df: DataFrame, params: Sequence[Mapping[Param[Any], Any]]) -> list[_Model]: ...
    def fit(self, dataset: DataFrame | None = None, params: Any = None, *, df: DataFrame | None = None) -> Any:
        """Train on the rows of a DataFrame. Return the model; with a list of `params`, a list of models.

        Args:
            params: parameters for this training only, as a dict from Params to values; or a list of such dicts.
            df: Horovod's name of `dataset`.

        Raises:
            TypeError: there is no DataFrame, or two.
            DataError: a column or value can't be used; also where a task of Spark's, or a rank, has noticed it.
            Others as `run_in_session`.
        """
        frame: Any = checks.get_frame("fit()", dataset, df) if dataset is None or df is not None else dataset
        with raise_task_errors():
            return self._fit_frame(frame, params)

    def _fit_frame(self, dataset: DataFrame, params: Any) -> Any:
        if not self._value("mlflow"):
            return super().fit(dataset, params)
        # Not by Spark's own method, which MLflow's autologging of pyspark.ml replaces by one that makes a second run.
        if isinstance(params, (list, tuple)):
            models = dict(self.fitMultiple(dataset, params))
            return [models[index] for index in range(len(params))]
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"params must be a dict, or a list of dicts; got {params!r:.100}.")
        return (self.copy(dict(params)) if params else self)._fit(dataset)

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Train as Spark ML's method does, which CrossValidator calls. The models' MLflow runs are below the run
        that is active now.
        """
        options = self._value("mlflow")
        if not options:
            return super().fitMultiple(dataset, paramMaps)
        check_installed()
        settings = dict(options) if isinstance(options, Mapping) else {}
        # Other threads, in which the models may be trained, have other active runs.
        nested = {**settings, "parent_run_id": settings.get("parent_run_id") or get_active_run_id()}
        informed = self.copy({self.getParam("mlflow"): nested})
        return Estimator.fitMultiple(informed, dataset, paramMaps)

    def fit_on_parquet(self, params: Mapping[Param[Any], Any] | None = None, dataset_idx: int | None = None) -> _Model:
        """Train on Parquet files at the store's path for training data.

        `fit` with ``materialize=True`` writes such files, and so does
        ``df.write.parquet(store.get_train_data_path())``. If `validation` is set and the store has validation data,
        that data is used; otherwise the validation rows are taken from the training data.

        Args:
            params: parameters for this training only, as in ``fit``.
            dataset_idx: the number of the data set in the store; None: the one without a number.

        Raises:
            ValueError: there is no store.
            DataError: there is no data, it is incomplete, or a rank has found a value that it cannot use.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(None, dataset_idx)
        training, backend, size = self._check_parameters()
        store, value = self._get_data_store("fit_on_parquet()"), self._value
        files = find_data_set(store, store.get_train_data_path(dataset_idx))
        validation_files, validation = None, value("validation")
        if validation is not None and store.exists(store.get_val_data_path(dataset_idx)):
            validation_files, validation = find_data_set(store, store.get_val_data_path(dataset_idx)), None
        request = RowRequest.from_parameters(value, validation, separate=validation_files is not None)
        plan = plan_files(files, validation_files, request, training.trial)
        features = Features.from_files(files, plan.columns) if value("mlflow") else None
        metadata = TrainingMetadata(training, size, plan, features)
        rows = None if validation_files is None else validation_files.rows
        with raise_task_errors():
            result: _Model = self._fit_on_prepared_data(backend, files.rows, rows, metadata, None, dataset_idx)
        return result

    def _fit(self, dataset: DataFrame) -> _Model:
        training, backend, size = self._check_parameters()
        value = self._value
        request = RowRequest.from_parameters(value, value("validation"))
        store = self._get_data_store("materialize=True") if value("materialize") else None
        if not backends.takes_rows(backend) and isinstance(value("store"), FilesystemStore):
            store = value("store")
        checks.check_batch_frame("fit()", dataset)
        check_connect(dataset.sparkSession)
        choose = partial(
            choose_source,
            read_files=value("read_files"),
            store=store,
            size=size,
            limited=RowLimits.from_parameters(value("cache_bytes"), value("buffer_bytes")) is not None,
            recovers=training.recovers and backends.replaces_ranks(backend, value("max_restarts")),
            spare_store=value("store"),
        )
        plan = plan_frame(dataset, request, training.trial, choose)
        backends.warn_without_store(value, sends_rows=plan.source.rows is not None)
        with plan.source.hold():
            result: _Model = self._fit_plan(dataset, plan, training, backend, size)
        return result

    def _fit_plan(
        self, dataset: DataFrame, plan: RowPlan, training: FrameworkTraining, backend: Any, size: Any
    ) -> _Model:
        value = self._value
        # Not before: the step on the first rows may have built layers, and the optimizer's state.
        model_transfer.check_room(dataset.sparkSession, training.state_bytes, value("store"))
        if plan.source.rows is not None and not backends.takes_rows(backend):
            raise ValueError(
                f"backend={backend!r} starts the ranks with its own run(), so Spark's tasks can't send them "
                "rows. Set store=Store.create('/path') to a path that the ranks can read, or fit a DataFrame that is "
                "nothing but Parquet files."
            )
        features = self._make_features(dataset, plan) if value("mlflow") else None
        zone = dataset.sparkSession.conf.get("spark.sql.session.timeZone")
        metadata = TrainingMetadata(training, size, plan, features, str(zone))
        result: _Model = self._fit_on_prepared_data(backend, None, None, metadata, None)
        return result

    def _make_features(self, dataset: DataFrame, plan: RowPlan) -> Features:
        """Return the columns that the model predicts from, for MLflow."""
        return Features.from_frame(dataset, {column.name: column.kind for column in plan.columns.features})

    def _fit_on_prepared_data(
        self,
        backend: Any,
        train_rows: int | None,
        val_rows: int | None,
        metadata: Any,
        avg_row_size: float | None,
        dataset_idx: int | None = None,
    ) -> Any:
        """Train on the rows of a plan; see `HorovodEstimator`."""
        if not isinstance(metadata, TrainingMetadata):
            raise TypeError(
                f"{type(self).__name__}._fit_on_prepared_data() takes the metadata that fit() calls it with; got "
                f"{metadata!r:.100} of type {type(metadata).__name__}."
            )
        value, training, plan = self._value, metadata.training, metadata.plan
        run_id = value("run_id") or f"{self._prefix}_{int(time.time())}_{secrets.token_hex(3)}"
        spec = TrainSpec.from_parameters(
            value,
            run_id=run_id,
            large=model_transfer.LARGE,
            owner=run_lease.make_owner(),
            framework=training.framework,
            heeds_warnings=value("store") is not None
            and training.saves_within
            and expects_warnings(replaces=value("max_restarts") > 0),
            initial=training.compute_digest() if value("run_id") and value("store") is not None else "",
            **plan.to_spec_fields(),
        )
        with self._track(run_id) as run:
            if run is not None:
                spec = replace(spec, tracking=run.make_rank_tracking())
            result, state = self._launch(backend, spec, metadata, None if run is None else run.take_record)
            if result.warning:
                warn_caller(result.warning)
            trained, optimizer = training.load_trained(state)
            keywords = self._get_model_kwargs(trained, result.history, optimizer, run_id, metadata.to_model_metadata())
            fitted = self._complete(self.get_model_class()(**keywords, **plan.model_params()), training)
            if run is not None:
                assert metadata.features is not None
                fitted.mlflow_run_id = run.run_id
                run.finish(fitted, metadata.features, result.history, training.state_bytes)
        return fitted

    def _launch(
        self, backend: Any, spec: TrainSpec, metadata: TrainingMetadata, take_record: TakeRecord | None
    ) -> tuple[TrainResult, bytes]:
        """Train on the ranks. Return rank 0's result, and the model's state."""
        # A run that the user has not named has a unique name: no other driver can use it.
        lease = run_lease.hold_lease(spec) if self._value("run_id") else contextlib.nullcontext()
        profile = self._value("profile") if self.hasParam("profile") else None
        with lease, backends.record_profile(profile, spec):
            try:
                result = backends.launch_training(
                    backend,
                    metadata.training.train,
                    spec,
                    metadata.size,
                    metadata.plan.source.rows,
                    caller=f"{type(self).__name__}.fit",
                    max_restarts=self._value("max_restarts"),
                    recovers=metadata.training.recovers and spec.source is not None,
                    take_record=take_record,
                )
            except BaseException:
                discard_partials(spec)
                raise
            if result.file is None:
                return result, result.state
            assert spec.store is not None
            return result, model_transfer.download_model(spec.store, *result.file)

    def _track(self, run_id: str) -> contextlib.AbstractContextManager[TrackedRun | None]:
        """Return the MLflow run of a training, if there is to be one."""
        options = MlflowOptions.from_parameter(self._value("mlflow"))
        if options is None:
            return contextlib.nullcontext()
        history = next(row for row in self._model_kind._rows if row.name == "history")

        def flatten_entry(entry: Mapping[str, Any]) -> dict[str, float]:
            rows: list[dict[str, float]] = history.check("history", [entry]).to_rows()
            return rows[0]

        chosen = {row.name: self._value(row.name) for row in self._rows if row.name != "mlflow"}
        if not isinstance(chosen.get("model"), str):
            chosen.pop("model", None)
        return TrackedRun(
            options,
            run_id,
            chosen,
            {"spark_estimator.run_id": run_id, "spark_estimator.estimator": type(self).__name__},
            RecordedMetrics(flatten_entry, history.default.losses[0]),
        )

    def _complete(self, fitted: Any, training: FrameworkTraining) -> Any:
        """Return the model that `fit` returns, with what only the framework knows of it."""
        return fitted

    def write(self) -> FolderWriter:
        """Return Spark ML's way to save: ``write().overwrite().save(path)``; not the store and the backend."""
        return FolderWriter(self._write_files)

    @classmethod
    def read(cls) -> FolderReader:
        """Return Spark ML's way to load: ``read().load(path)``."""
        return FolderReader(cls.load)

    def _get_data_store(self, method: str) -> FilesystemStore:
        store = self._value("store")
        if not isinstance(store, FilesystemStore):
            raise ValueError(
                f"{method} needs a store whose folders are known here, for example store=Store.create('/path'); got "
                f"{store!r}."
            )
        return store

    def _check_parameters(self) -> tuple[FrameworkTraining, Any, Any]:
        """Check the parameters before any row is read. Return the framework's side, the backend, and `size_of` it.

        Raises:
            TypeError, ValueError: a parameter, or an environment variable, has a value that can't be used.
            PythonEnvironmentError: MLflow is needed, and is missing.
        """
        if self._value("mlflow"):
            check_installed()
        training = self._make_training()
        backend = self._choose_backend()
        backends.check_restarts(backend, self._value("max_restarts"))
        return training, backend, backends.get_size(backend, self._value("num_proc"))

    def _choose_backend(self) -> Any:
        """Return what trains: None is the session, which `_get_or_create_backend` has a backend for only in a subclass.

        Raises:
            ValueError: an environment variable has a value that the ranks could not use.
        """
        Settings.read()
        if type(self)._get_or_create_backend is HorovodEstimator._get_or_create_backend:
            backends.check_alone(self._value("backend"), self._value("num_proc"))
            return self._value("backend")
        return checks.check_backend("_get_or_create_backend()", self._get_or_create_backend())
