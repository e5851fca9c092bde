"""Backends: where an estimator's training function runs: on Spark, on this host, or in a user's subclass."""

from __future__ import annotations

import inspect
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_estimator.env import Settings
from spark_estimator.launch.cli.obsolete import REASONS, explain
from spark_estimator.launch.job.environment import OMP, select_inherited_variables
from spark_estimator.launch.job.options import JobOptions, check_num_proc
from spark_estimator.launch.local import run_local
from spark_estimator.launch.spark.entry import find_session_and_size
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import choose_default_size
from spark_estimator.observe.driver_log import announce
from spark_estimator.observe.status_line import ProgressDisplay
from spark_estimator.observe.training_records import TakeRecord
from spark_estimator.spark.runner import make_job_options, run, run_with

_DEVICES = "CUDA_VISIBLE_DEVICES"


def default_num_proc() -> int:
    """Return the ranks that `SparkBackend` and `run` take by default: see `run`'s num_proc."""
    return find_session_and_size(choose_default_size, "default_num_proc()")[1]


def get_available_devices() -> list[str]:
    """Return the GPUs that this rank has, as CUDA_VISIBLE_DEVICES names them; none outside of a job."""
    if "HOROVOD_RANK" not in os.environ:
        return []
    return [device.strip() for device in os.environ.get(_DEVICES, "").split(",") if device.strip()]


class Backend:
    """Runs a function on several ranks. To train elsewhere, subclass it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on `num_processes` ranks.

        Args:
            env: variables for the ranks.

        Returns:
            [num_processes] what it returned on each rank, in rank order.
        """
        raise NotImplementedError(f"{type(self).__name__} is a Backend and must define run().")

    def num_processes(self) -> int:
        """Return the number of ranks."""
        raise NotImplementedError(f"{type(self).__name__} is a Backend and must define num_processes().")


class SparkBackend(Backend):
    """Runs in Spark tasks, by `spark.run`.

    Args:
        num_proc: number of ranks; None: the default of `spark.run`, determined when it is first needed.
        env: variables for the ranks. None: this process's variables that the executors don't set, except those that
            describe this process (its Python, Spark, libraries and devices).
        kwargs: other arguments of `spark.run`: start_timeout, stdout, verbose, ... An estimator has no start_timeout
            by default; if it is set, it includes the time in which Spark computes the DataFrame.
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc, self._env, self._kwargs = _check_arguments(type(self), num_proc, env, kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` as `Backend.run`; raises the errors of `spark.run`."""
        return run_with(fn, self._make_options(env, args, kwargs), self.num_processes())

    def run_on_rows(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        rows: Rows | None,
        *,
        caller: str,
        max_restarts: int,
        max_result_bytes: int,
        verbose: int = 1,
        recovers: bool = False,
        take_record: TakeRecord | None = None,
    ) -> list[Any]:
        """Call ``fn(*args)`` as `run`, for estimators.

        Args:
            rows: of a DataFrame, which Spark's tasks pass to the ranks; None: none.
            caller: the user's call, for messages.
            max_restarts: overrides this backend's.
            max_result_bytes: a larger value is an error.
            verbose: of the estimator. Its progress is shown if neither this nor the backend's is 0.
            recovers: as in `run_in_session`.
            take_record: as in `JobOptions`.

        Returns:
            What rank 0 returned, first.
        """
        options = self._make_options(None, args, None, max_restarts=max_restarts)
        options = replace(
            options,
            max_result_bytes=max_result_bytes,
            all_results=False,
            take_record=take_record,
            progress=ProgressDisplay.ANYWHERE if verbose and options.verbose else ProgressDisplay.OFF,
        )
        return run_with(fn, options, self.num_processes(), rows=rows, caller=caller, recovers=recovers)

    @property
    def max_restarts(self) -> int:
        """Return how often a failed job restarts."""
        return int(self._kwargs.get("max_restarts", 0))

    def _make_options(
        self, env: Mapping[str, str] | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None, **overrides: Any
    ) -> JobOptions:
        """Make this backend's options for one call."""
        requested = {**(self._env or {}), **(env or {})}
        # Programs hide the driver's GPUs from TensorFlow by it before they train; the ranks are to see theirs.
        hidden = requested.pop(_DEVICES, None)
        if hidden is not None and hidden != os.environ.get(_DEVICES):
            warnings.warn(
                f"env: {_DEVICES}={hidden!r} has no effect: each rank sees the GPUs that Spark gives its task.",
                stacklevel=4,
            )
        inherited = select_inherited_variables(os.environ) if self._env is None else {}
        if OMP in inherited:  # Spark sets it in every task, so that it would never count as unset
            requested.setdefault(OMP, inherited[OMP])
        return make_job_options(args, kwargs, env=requested, env_if_unset=inherited, **{**self._kwargs, **overrides})

    def num_processes(self) -> int:
        if self._num_proc is None:
            self._num_proc = default_num_proc()
        return self._num_proc


class LocalBackend(Backend):
    """Runs in processes of this host, without Spark.

    Args:
        num_proc: number of ranks; None: one.
        env: variables for the ranks, in addition to those of this process.
        kwargs: those of `SparkBackend`, so that either can replace the other. `start_timeout` is how long ranks wait
            for each other in ``init()``; `verbose=2` also prints the host.
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc, self._env, self._kwargs = _check_arguments(type(self), num_proc or 1, env, kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` as `Backend.run`.

        Raises:
            PicklingError: the function or an argument can't be pickled.
            WorkerFailedError: a rank failed; its traceback is the cause.
            ResultError: a rank's value can't be returned.
        """
        return self._run(fn, args, kwargs, env, None)

    def run_recorded(self, fn: Callable[..., Any], args: Sequence[Any], take_record: TakeRecord | None) -> list[Any]:
        """Call ``fn(*args)`` as `run`, for estimators; `take_record` as in `JobOptions`."""
        return self._run(fn, args, None, None, take_record)

    def _run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        env: Mapping[str, str] | None,
        take_record: TakeRecord | None,
    ) -> list[Any]:
        environment = {**(self._env or {}), **(env or {})}
        start_timeout = self._kwargs.get("start_timeout")
        if start_timeout is not None:
            environment["HOROVOD_START_TIMEOUT"] = str(start_timeout)
            Settings.read({**os.environ, **environment})  # refuses a value that the ranks could not use
        options = make_job_options(args, kwargs, env=environment, **self._kwargs)
        if options.verbose >= 2:
            announce(f"{self.num_processes()} ranks on {socket.gethostname()}")
        return run_local(fn, self.num_processes(), replace(options, take_record=take_record))

    def num_processes(self) -> int:
        assert self._num_proc is not None
        return self._num_proc


def _check_arguments(
    kind: type[Backend], num_proc: int | None, env: Mapping[str, str] | None, kwargs: dict[str, Any]
) -> tuple[int | None, Mapping[str, str] | None, dict[str, Any]]:
    """Check a constructor's arguments. Return them without those that have no effect.

    Raises:
        TypeError, ValueError: an argument can't be used; the text names it and its value.
    """
    check_num_proc(num_proc)
    accepted = set(inspect.signature(run).parameters) - {"fn", "args", "kwargs"}
    unknown = sorted(kwargs.keys() - accepted)
    if unknown:
        raise TypeError(f"{kind.__name__}() has no argument {unknown[0]!r}; its arguments are {sorted(accepted)}.")
    explain({name: value for name, value in kwargs.items() if name in REASONS}, stacklevel=4)
    effective = {name: value for name, value in kwargs.items() if name not in REASONS}
    make_job_options(env=env, **effective)
    return num_proc, env, effective
