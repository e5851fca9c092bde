"""One MLflow run for one training: begun before the ranks, fed while they train, ended with the model or an error.

Only the driver makes the run, in a separate thread: ranks send their records to the driver, so that there is one run
for any number of them. If MLflow is away, the training continues; `fit` waits for it at the end, for a limited time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator import __version__
from spark_estimator.errors import JobCancelledError, PreflightError, PythonEnvironmentError
from spark_estimator.estimators.mlflow_options import PARENT_TAG, MlflowOptions
from spark_estimator.estimators.tracking import flavour, plots
from spark_estimator.estimators.tracking.mlflow_thread import CallState, MlflowCall, MlflowThread, is_transient
from spark_estimator.estimators.tracking.rank_tracking import RankTracking
from spark_estimator.estimators.tracking.recorded_metrics import MetricQueue, MetricValue, RecordedMetrics
from spark_estimator.estimators.tracking.signature import Features
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import announce

if TYPE_CHECKING:
    from spark_estimator.estimators.model import TableModel

_log = get_logger(__name__)

# Before the training; and after it, without a call of MLflow's that succeeds.
START_LIMIT, END_LIMIT = timedelta(seconds=30), timedelta(seconds=60)
# A rank's host: MLflow's default.
_SAMPLED_EVERY = timedelta(seconds=10)
# How fast a model's bytes are sent at least.
_BYTES_PER_SECOND = 1 << 20
_LONGEST_PARAMETER, _LONGEST_NOTE = 500, 5000
# MLflow takes no more in one request.
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000
# The run of the process, which MLflow Projects and jobs set.
_RUN_VARIABLE = "MLFLOW_RUN_ID"
_environment_lock = threading.Lock()
# MLflow's tag for a run's description.
_NOTE_TAG = "mlflow.note.content"


def check_installed() -> None:
    """Raise PythonEnvironmentError if `mlflow` is set and MLflow is missing.

    Raises:
        PythonEnvironmentError: it is.
    """
    try:
        import mlflow  # noqa: F401
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            "the parameter mlflow needs MLflow on the driver: pip install mlflow (or mlflow-skinny), or leave mlflow "
            "out."
        ) from error


def get_active_run_id() -> str | None:
    """Return the run that is active in this thread, or that the environment of a job names; None: there is none."""
    import mlflow

    run = mlflow.active_run()
    return os.environ.get(_RUN_VARIABLE) or None if run is None else str(run.info.run_id)


@contextlib.contextmanager
def _keep_environment_run() -> Iterator[None]:
    """Unset the variable meanwhile: `start_run` would continue its run, and remove it, as `end_run` does."""
    with _environment_lock:
        run_id = os.environ.pop(_RUN_VARIABLE, None)
        try:
            yield
        finally:
            if run_id is not None:
                os.environ[_RUN_VARIABLE] = run_id


class TrackedRun:
    """The run. A context manager around the training: an exception ends it as FAILED, a cancellation as KILLED.

    Args:
        options: of the estimator.
        name: of the training: the run's name where the options have none.
        parameters: of the estimator; those that are None may be known after the training.
        tags: of the run.
        metrics: makes metrics of the ranks' records.

    Attributes:
        run_id: MLflow's, once it has begun.
    """

    def __init__(
        self,
        options: MlflowOptions,
        name: str,
        parameters: Mapping[str, Any],
        tags: Mapping[str, str],
        metrics: RecordedMetrics,
    ) -> None:
        self.run_id = ""
        self._options = options
        self._name = options.run_name or name
        self._parameters = _to_texts(parameters)
        self._unknown = [key for key, value in parameters.items() if value is None]
        self._tags = {**tags, "spark_estimator.version": __version__, **options.tags}
        self._metrics = metrics
        self._thread = MlflowThread(announce)
        self._queue = MetricQueue()
        self._client: Any = None
        self._is_active = False
        self._is_wanted = True
        self._model_address = ""
        self._parent = options.parent_run_id or get_active_run_id()

    def __enter__(self) -> TrackedRun:
        """Begin the run.

        Raises:
            PreflightError: MLflow refuses it, or does not answer.
        """
        import mlflow

        call = self._thread.submit(MlflowCall("begin a run", self._begin, once=True))
        answered = self._thread.wait(call, START_LIMIT)
        self._is_wanted = call.state is CallState.DONE
        if not self._is_wanted:
            self._thread.close()
            outcome = f"failed: {call.error}" if answered else f"got no answer within {START_LIMIT.total_seconds():g} s"
            raise PreflightError(
                f"mlflow: beginning a run at {mlflow.get_tracking_uri()} {outcome}. Nothing was trained. Start the "
                "tracking server, choose another one with mlflow.set_tracking_uri(), or leave mlflow out."
            ) from call.error
        self._submit("log the parameters", lambda: self._log_parameters(self._parameters))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._fail(error)
        self._thread.close()

    def make_rank_tracking(self) -> RankTracking:
        """Return the ranks' part of the run."""
        sampled = self._options.log_system_metrics
        seconds = _SAMPLED_EVERY.total_seconds() if sampled is True else sampled or None
        return RankTracking(self._options.log_every_n_steps, seconds)

    def take_record(self, rank: int, record: Mapping[str, Any]) -> None:
        """Take a record of a rank; does not block, and raises nothing."""
        try:
            self._add(self._metrics.convert_record(rank, record))
        except Exception as error:
            _log.info("a record of rank %d is left out: %r", rank, error)

    def finish(
        self, model: TableModel, features: Features, entries: Sequence[Mapping[str, Any]], model_bytes: int
    ) -> None:
        """Log the remaining metrics and the model, and end the run. If MLflow is away, a line names what is missing.

        Args:
            entries: of the history.
            model_bytes: about how large the model is.
        """
        self._add(self._metrics.convert_epochs(entries))
        chosen = {key: model._value(key) for key in self._unknown if model.hasParam(key)}
        texts = _to_texts({key: value for key, value in chosen.items() if isinstance(value, str)})
        if texts:
            self._submit("log the parameters", lambda: self._log_parameters(texts))
        pictures = plots.draw_history(model._value("history"))
        if pictures:
            self._submit("log the plots", lambda: self._log_pictures(pictures))
        if self._options.log_model:
            patience = timedelta(seconds=model_bytes / _BYTES_PER_SECOND)
            self._submit("log the model", lambda: self._log_model(model, features), patience)
            if self._options.registered_model_name:
                self._submit("register the model", self._register_model, patience)
        self._end("FINISHED")

    def _fail(self, error: BaseException) -> None:
        killed = isinstance(error, (KeyboardInterrupt, SystemExit, JobCancelledError))
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        note = f"{type(error).__name__}: {error}"[:_LONGEST_NOTE]

        def log_error() -> None:
            self._client.set_tag(self.run_id, _NOTE_TAG, note)
            self._client.log_text(self.run_id, text, "error.txt")

        self._submit("log the error", log_error)
        self._end("KILLED" if killed else "FAILED")

    def _end(self, status: str) -> None:
        """End the run after all calls before, and wait for that, if MLflow answers."""
        import mlflow

        call = self._submit("end the run", lambda: self._terminate(status))
        ended = False
        with contextlib.suppress(KeyboardInterrupt):
            ended = self._thread.wait(call, END_LIMIT)
        missing = self._thread.list_outstanding()
        if ended and not missing:
            return
        reason = "" if ended else f"{mlflow.get_tracking_uri()} does not answer: "
        announce(
            f"mlflow: {reason}run {self.run_id} is not complete: {', '.join(missing)}. While this program runs, it is "
            "tried again."
        )

    def _submit(self, description: str, function: Callable[[], None], patience: timedelta = timedelta(0)) -> MlflowCall:
        return self._thread.submit(MlflowCall(description, function, patience))

    def _add(self, values: Sequence[MetricValue]) -> None:
        """Log values, together with those that wait already."""
        if self._queue.add(values):
            self._submit("log metrics", self._log_values)

    # --- in MLflow's thread ---

    def _begin(self) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        tags = {**self._tags, **({} if self._parent is None else {PARENT_TAG: self._parent})}
        experiment = self._find_experiment()
        with _keep_environment_run():
            run = mlflow.start_run(
                experiment_id=experiment, run_name=self._name, nested=True, tags=tags, log_system_metrics=False
            )
        self.run_id = str(run.info.run_id)
        if not self._is_wanted:  # too late
            _end_active("KILLED")
            return
        self._is_active = _is_of_this_thread()
        if not self._is_active:  # the run would be every thread's active one
            _end_active("RUNNING")
            if self._parent is not None:
                self._client.set_tag(self.run_id, PARENT_TAG, self._parent)

    def _find_experiment(self) -> str | None:
        """Return the id of the run's experiment; None: the active one."""
        name, client = self._options.experiment_name, self._client
        parent = None if self._parent is None else client.get_run(self._parent)  # an error where there is none
        if name is not None:
            experiment = client.get_experiment_by_name(name)
            return str(client.create_experiment(name) if experiment is None else experiment.experiment_id)
        return None if parent is None else str(parent.info.experiment_id)

    def _log_parameters(self, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        items = [Param(key, value) for key, value in parameters.items()]
        for start in range(0, len(items), _MOST_PARAMETERS):
            self._client.log_batch(self.run_id, params=items[start : start + _MOST_PARAMETERS])

    def _log_values(self) -> None:
        from mlflow.entities import Metric

        while values := self._queue.peek(_MOST_METRICS):
            try:
                self._client.log_batch(
                    self.run_id, metrics=[Metric(value.name, value.value, time, value.step) for value, time in values]
                )
            except Exception as error:
                if is_transient(error):
                    raise
                names = sorted({value.name for value, _ in values})
                announce(f"mlflow: {', '.join(names)} of run {self.run_id} could not be logged: {error}")
            self._queue.remove(len(values))

    def _log_pictures(self, pictures: Mapping[str, Any]) -> None:
        for name, figure in pictures.items():
            self._client.log_figure(self.run_id, figure, name)

    def _log_model(self, model: TableModel, features: Features) -> None:
        import mlflow

        if self._is_active:
            self._model_address = flavour.log_model(model, features, self._options)
            return
        mlflow.start_run(run_id=self.run_id, nested=True, log_system_metrics=False)
        try:
            self._model_address = flavour.log_model(model, features, self._options)
        finally:
            _end_active("FINISHED")

    def _register_model(self) -> None:
        import mlflow

        if self._model_address:  # it could be logged
            mlflow.register_model(self._model_address, self._options.registered_model_name)

    def _terminate(self, status: str) -> None:
        if self._is_active:
            self._is_active = False
            _end_active(status)
        else:
            self._client.set_terminated(self.run_id, status)


def _end_active(status: str) -> None:
    """End this thread's active run."""
    import mlflow

    with _keep_environment_run():
        mlflow.end_run(status)


def _to_texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: (value if isinstance(value, str) else repr(value))[:_LONGEST_PARAMETER]
        for key, value in parameters.items()
        if value not in (None, [])
    }


def _is_of_this_thread() -> bool:
    """Return whether the active run is this thread's alone, as since MLflow 2.16."""
    import mlflow

    seen: list[Any] = []
    other = threading.Thread(target=lambda: seen.append(mlflow.active_run()))
    other.start()
    other.join()
    return seen == [None]
