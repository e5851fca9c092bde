"""Runs a training: in the Spark session, or by the estimator's `backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spark_estimator.env import Settings
from spark_estimator.estimators.params import warn_caller
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.entry import run_in_session
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import choose_default_size
from spark_estimator.observe.driver_log import announce
from spark_estimator.observe.status_line import ProgressDisplay
from spark_estimator.observe.training_records import TakeRecord
from spark_estimator.spark import LocalBackend, SparkBackend
from spark_estimator.store import Store

# The trained model passes through the memory of an executor and of the driver.
_MOST_RESULT_BYTES = 1 << 30


def check_alone(backend: Any, num_proc: int | None) -> None:
    """Raise ValueError if the user has given both."""
    if backend is not None and num_proc is not None:
        raise ValueError("num_proc and backend can't be combined: the backend has its own num_proc.")


def get_size(backend: Any, num_proc: int | None) -> Any:
    """Return the number of ranks, or the function that chooses it for a session."""
    return num_proc or choose_default_size if backend is None else backend.num_processes()


def takes_rows(backend: Any) -> bool:
    """Return whether Spark's tasks start the ranks and can send them rows; a backend with its own run() starts them
    itself.
    """
    return backend is None or getattr(backend.run, "__func__", None) is SparkBackend.run


def check_restarts(backend: Any, max_restarts: int) -> None:
    """Raise ValueError if max_restarts conflicts with the backend's, or the backend starts the ranks itself.

    Raises:
        ValueError: the backend has another number of restarts, or has its own run().
    """
    if not max_restarts or backend is None:
        return
    if not takes_rows(backend):
        raise ValueError(
            f"max_restarts={max_restarts} has no effect on {type(backend).__name__}, whose run() starts the ranks: "
            "leave it out, or have run() do it."
        )
    backend_restarts = backend.max_restarts
    if backend_restarts not in (0, max_restarts):
        raise ValueError(f"max_restarts={max_restarts}, and {backend_restarts} of the backend: give one of them.")


def replaces_ranks(backend: Any, max_restarts: int) -> bool:
    """Return whether a training whose ranks read files may get processes that replace lost ones."""
    return Settings.read().driver_channel and bool(max_restarts or getattr(backend, "max_restarts", 0))


def warn_without_store(value: Callable[[str], Any], *, sends_rows: bool) -> None:
    """Warn about parameters that have no effect, or less, because there is no store for checkpoints.

    Args:
        value: gives a parameter of the estimator by its name.
        sends_rows: Spark's tasks send rows to the ranks.
    """
    if value("store") is not None:
        return
    remedy = "Set store=Store.create('/path') to save checkpoints and to resume from them."
    costs = "the loss of one rank costs" if sends_rows else "a training whose ranks all restart loses"
    run_id, restarts = value("run_id"), value("max_restarts")
    if run_id and not value("mlflow"):  # MLflow's run has the name
        warn_caller(f"run_id={run_id!r} has no effect without store: nothing is saved. {remedy}")
    if restarts:
        warn_caller(
            f"max_restarts={restarts} without store: {costs} everything that was done, because no checkpoint is saved"
            f"{' and Spark sends the rows again' if sends_rows else ''}. {remedy}"
        )


@contextmanager
def record_profile(profile: Any, spec: TrainSpec) -> Iterator[None]:
    """Record a `spark_estimator.profile` of the ranks that are started within, if it is not None.

    With a store, the traces go into the run's folder.
    """
    with ExitStack() as stack:
        if profile is not None and spec.store is not None:
            folder = stack.enter_context(TemporaryDirectory())
            stack.callback(_move_traces, folder, spec.store, spec.store.get_run_path(spec.run_id))
            profile = profile.write_to(folder)
        if profile is not None:
            stack.enter_context(profile)
        yield


def _move_traces(folder: str, store: Store, run_path: str) -> None:
    for trace in Path(folder).iterdir():
        store.write(f"{run_path}/{trace.name}", trace.read_bytes())
        announce(f"moved {trace} to {run_path}")


def launch_training(
    backend: Any,
    train: Callable[[TrainSpec], TrainResult | None],
    spec: TrainSpec,
    size: Any,
    rows: Rows | None,
    *,
    caller: str,
    max_restarts: int,
    recovers: bool = False,
    take_record: TakeRecord | None = None,
) -> TrainResult:
    """Run a training. Return rank 0's result.

    Args:
        size: as `get_size` gave it.
        rows: that Spark's tasks bring; None: the ranks read files. A backend that has its own run() gets none.
        caller: how messages call what the user has called.
        max_restarts: of the estimator.
        recovers: as in `run_in_session`.
        take_record: receives the ranks' records while they train; by a user's own backend it is not.

    Raises:
        TypeError: the backend's run() did not return the ranks' values.
        Others as `run_in_session`.
    """
    if backend is None:
        options = JobOptions(
            args=(spec,),
            show_line=None,
            verbose=0,
            take_record=take_record,
            progress=ProgressDisplay.ANYWHERE if spec.verbose else ProgressDisplay.OFF,
            max_result_bytes=_MOST_RESULT_BYTES,
            limits=Limits.from_arguments(max_restarts, None),
        )
        results: Any = run_in_session(train, size, options, caller=caller, rows=rows, recovers=recovers)
    elif takes_rows(backend):
        results = backend.run_on_rows(
            train,
            (spec,),
            rows,
            caller=caller,
            max_restarts=max_restarts or backend.max_restarts,
            max_result_bytes=_MOST_RESULT_BYTES,
            verbose=spec.verbose,
            recovers=recovers,
            take_record=take_record,
        )
    elif type(backend).run is LocalBackend.run:
        results = backend.run_recorded(train, (spec,), take_record)
    else:
        results = backend.run(train, args=(spec,), env={})
    try:
        first = next(iter(results))
    except (TypeError, StopIteration):
        first = None
    if not isinstance(first, TrainResult):
        raise TypeError(
            f"{type(backend).__name__}.run() returned {results!r:.100}: it has to return a list of what the function "
            "returned on each rank, in rank order."
        )
    return first
