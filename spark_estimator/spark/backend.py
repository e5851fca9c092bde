"""Backends: where an estimator's training function runs: on Spark, on this host, or where a user's class says."""

from __future__ import annotations

import inspect
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_estimator.env import Settings
from spark_estimator.launch.cli.obsolete import REASONS, explain
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.environment import OMP
from spark_estimator.launch.job.spec import checked_environment, inherited_environment
from spark_estimator.launch.local import run_local
from spark_estimator.launch.spark.entry import session_and_size
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import default_size
from spark_estimator.launch.worker.output import lines_to
from spark_estimator.spark.runner import check_num_proc, run, run_with, say, seconds_of

_DEVICES = "CUDA_VISIBLE_DEVICES"


def default_num_proc() -> int:
    """The ranks that `SparkBackend` and `run` take by default: see `run`'s num_proc."""
    return session_and_size(default_size, "default_num_proc()")[1]


class Backend:
    """A place where a function can be run on several ranks. To train elsewhere, subclass it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on `num_processes` ranks.

        Args:
            env: variables for the ranks.

        Returns:
            [num_processes] what it returned on each rank, in rank order.
        """
        raise NotImplementedError(f"{type(self).__name__} is a Backend and has to define run().")

    def num_processes(self) -> int:
        """The number of ranks."""
        raise NotImplementedError(f"{type(self).__name__} is a Backend and has to define num_processes().")


class SparkBackend(Backend):
    """Runs in Spark tasks, by `spark.run`.

    Args:
        num_proc: number of ranks; None: as `spark.run` chooses, when it is first needed.
        env: variables for the ranks. None: this process's own, as far as the executors have not set them otherwise and
            they do not describe this very process (its Python, Spark, libraries and devices).
        kwargs: more of `spark.run`'s arguments: start_timeout, stdout, verbose, ... In an estimator they hold as in
            `run`, with one difference: without a start_timeout, Spark may take its time to compute the DataFrame; with
            one, that counts.
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc, self._env, self._kwargs = _checked(type(self), num_proc, env, kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """As `Backend.run`; what it raises is told at `spark.run`."""
        return run_with(fn, args, kwargs, **self._settings(env))

    def run_on_rows(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        rows: Rows | None,
        *,
        caller: str,
        max_restarts: int,
        max_result_bytes: int,
    ) -> list[Any]:
        """As `run`, for estimators.

        Args:
            rows: of a DataFrame, that the ranks get from Spark's tasks; None: none.
            caller: how messages call what the user has called.
            max_restarts: in place of this backend's.
            max_result_bytes: a larger value is refused.

        Returns:
            [1] what rank 0 returned.
        """
        settings = {**self._settings(None), "max_restarts": max_restarts}
        given: dict[str, Any] = {"rows": rows, "max_result_bytes": max_result_bytes, "all_results": False}
        return run_with(fn, args, caller=caller, **given, **settings)

    @property
    def max_restarts(self) -> int:
        """How often a job that failed is started anew."""
        return int(self._kwargs.get("max_restarts", 0))

    def _settings(self, env: Mapping[str, str] | None) -> dict[str, Any]:
        """What `run_with` is given beside the call."""
        asked_for = {**(self._env or {}), **(env or {})}
        # Programs hide the driver's GPUs from TensorFlow by it before they train; the ranks are to see theirs.
        hidden = asked_for.pop(_DEVICES, None)
        if hidden is not None and hidden != os.environ.get(_DEVICES):
            warnings.warn(
                f"env: {_DEVICES}={hidden!r} has no effect: each rank sees the GPUs that Spark gives its task.",
                stacklevel=4,
            )
        inherited = inherited_environment(os.environ) if self._env is None else {}
        if OMP in inherited:  # Spark sets it in every task, so that it would never count as unset
            asked_for.setdefault(OMP, inherited[OMP])
        return {"num_proc": self.num_processes(), "env": asked_for, "env_if_unset": inherited, **self._kwargs}

    def num_processes(self) -> int:
        if self._num_proc is None:
            self._num_proc = default_num_proc()
        return self._num_proc


class LocalBackend(Backend):
    """Runs in processes of this host, without Spark.

    Args:
        num_proc: number of ranks; None: one.
        env: variables for the ranks, in addition to this process's own.
        kwargs: those of `SparkBackend`, so that one can stand in for the other. `start_timeout` is for how long the
            ranks wait for one another in ``init()``; with `verbose` 2 the host is told.
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc, self._env, self._kwargs = _checked(type(self), num_proc or 1, env, kwargs)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """As `Backend.run`.

        Raises:
            PicklingError: the function or an argument cannot travel.
            WorkerFailedError: a rank failed; its traceback is the cause.
            ResultError: a rank's value cannot be had.
        """
        show_line = lines_to(
            self._kwargs.get("stdout"),
            self._kwargs.get("stderr"),
            with_time=self._kwargs.get("prefix_output_with_timestamp", False),
        )
        environment = {**(self._env or {}), **(env or {})}
        start_timeout, verbose = self._kwargs.get("start_timeout"), self._kwargs.get("verbose", 1)
        if start_timeout is not None:
            environment["HOROVOD_START_TIMEOUT"] = str(start_timeout)
            Settings.read({**os.environ, **environment})  # refuses a value that the ranks could not use
        if verbose >= 2:
            say(f"{self.num_processes()} ranks on {socket.gethostname()}")
        return run_local(
            fn,
            self.num_processes(),
            args=args,
            kwargs=kwargs,
            environment=environment,
            all_results=True,
            show_line=show_line,
            show_status=verbose >= 1,
            limits=Limits.checked(self._kwargs.get("max_restarts", 0), self._kwargs.get("timeout")),
        )

    def num_processes(self) -> int:
        assert self._num_proc is not None
        return self._num_proc


def _checked(
    kind: type[Backend], num_proc: int | None, env: Mapping[str, str] | None, kwargs: dict[str, Any]
) -> tuple[int | None, Mapping[str, str] | None, dict[str, Any]]:
    """A constructor's arguments, without those that have no effect, once they are known to be of `run`'s.

    Raises:
        TypeError, ValueError: one of them cannot be used.
    """
    check_num_proc(num_proc)
    taken = set(inspect.signature(run).parameters) - {"fn", "args", "kwargs", "num_proc", "env"}
    unknown = sorted(kwargs.keys() - taken)
    if unknown:
        taken |= {"num_proc", "env"}
        raise TypeError(f"{kind.__name__}() takes no argument {unknown[0]!r}; it takes {sorted(taken)}.")
    verbose = kwargs.get("verbose", 1)
    if not isinstance(verbose, int):
        raise TypeError(f"{kind.__name__}(verbose={verbose!r}): 0, 1 or 2 is needed.")
    checked_environment(env)
    seconds_of("start_timeout", kwargs.get("start_timeout"), 1.0)
    Limits.checked(kwargs.get("max_restarts", 0), kwargs.get("timeout"))
    explain({name: value for name, value in kwargs.items() if name in REASONS}, stacklevel=4)
    return num_proc, env, {name: value for name, value in kwargs.items() if name not in REASONS}
