"""`spark.run`: Horovod's way to call a function on Spark, with all ranks' values as the answer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from spark_estimator.env import Settings
from spark_estimator.launch.attempts import Limits
from spark_estimator.launch.in_session import run_in_session
from spark_estimator.launch.obsolete import explain
from spark_estimator.launch.output import TextStream, lines_to
from spark_estimator.launch.slots import default_size


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextStream | None = None,
    stderr: TextStream | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    max_restarts: int = 0,
    timeout: float | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on `num_proc` ranks, each in a Spark task, that start together.

    Runs in the session that there is, classic or Connect, or in a new local one.

    Args:
        fn: travels by cloudpickle, with what it uses of the notebook or script; so do its arguments.
        num_proc: number of ranks. None: all slots of the session, or ``spark.default.parallelism`` where that is set
            to less.
        start_timeout: seconds until user code must have begun on all ranks. None: `HOROVOD_SPARK_START_TIMEOUT`, 600
            by default. More ranks than the session has slots for are refused at once. Where Spark's workers cannot
            reach the driver and Spark does not tell whether they run, nobody is stopped for being late.
        env: variables for the ranks, in addition to what their executors have; those that begin with ``HOROVOD_``,
            ``SPARK_ESTIMATOR_`` or ``NCCL_`` are handed on from this process anyway. A ``PYTHONPATH`` in it adds to
            where the ranks find modules.
        stdout, stderr: text streams that get the ranks' lines, ``[rank]<stdout>:text``; None: this process's own. Where
            the driver cannot be reached from the executors, lines go to the executors' logs.
        verbose: 0: nothing but the ranks' lines; 1: also how many ranks were chosen; 2: also where each of them runs.
        prefix_output_with_timestamp: the time stands in front of each line.
        max_restarts: how often a job that failed (a rank died or raised, an executor was lost) is started anew as a
            whole. What is tried again, and what is not, stands at the head of ``spark_estimator.launch.attempts``; `fn`
            finds the number of the attempt, from 1, in the variable `SPARK_ESTIMATOR_ATTEMPT`.
        timeout: seconds in which the job has to end, waiting for slots and attempts included; its ranks are ended then.
        use_mpi, use_gloo, extra_mpi_args, nics, executable: without effect here; a warning says why.

    Returns:
        [num_proc] what `fn` returned on each rank, in rank order; at most 64 MiB each when pickled.

    Raises:
        PreflightError: the job was refused before it started; the text says what to change.
        StartTimeoutError: not all ranks had begun in time; the text says how many slots there are and who holds them.
        WorkerFailedError: a rank failed; its traceback comes first, as the cause.
        ResultError: a rank's value could not be brought back.
        JobTimeoutError: it took longer than `timeout`.
        JobCancelledError: somebody cancelled it in Spark.
    """
    explain(
        {
            "use_mpi": use_mpi,
            "use_gloo": use_gloo,
            "extra_mpi_args": extra_mpi_args,
            "nics": nics,
            "executable": executable,
        }
    )
    return run_with(
        fn,
        args,
        kwargs,
        num_proc=num_proc,
        start_timeout=start_timeout,
        env=env,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
        max_restarts=max_restarts,
        timeout=timeout,
    )


def run_with(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    env_if_unset: Mapping[str, str] | None = None,
    stdout: TextStream | None = None,
    stderr: TextStream | None = None,
    verbose: int = 1,
    prefix_output_with_timestamp: bool = False,
    max_restarts: int = 0,
    timeout: float | None = None,
) -> list[Any]:
    """As `run`, without what has no effect.

    Args:
        env_if_unset: variables for the ranks whose executors have not set them otherwise.
    """
    check_num_proc(num_proc)
    limits = Limits.checked(max_restarts, timeout)
    to_start = Settings.read().spark_start_timeout_seconds if start_timeout is None else start_timeout
    if type(to_start) not in (int, float) or not 0 < to_start < math.inf:
        raise ValueError(f"start_timeout is a number of seconds, more than 0; it was {to_start!r}.")

    def chosen(spark: Any) -> int:
        size = default_size(spark)
        if verbose >= 1:
            _say(f"{size} ranks, which is what the session has room for (num_proc was not given)")
        return size

    return run_in_session(
        fn,
        chosen if num_proc is None else num_proc,
        caller=f"spark.run(num_proc={num_proc})",
        args=args,
        kwargs=kwargs,
        environment=env,
        environment_if_unset=env_if_unset,
        all_results=True,
        show_line=lines_to(stdout, stderr, with_time=prefix_output_with_timestamp),
        say=_say if verbose >= 2 else None,
        start_timeout=timedelta(seconds=to_start),
        limits=limits,
    )


def check_num_proc(num_proc: int | None) -> None:
    """Refuses what is no number of ranks.

    Raises:
        TypeError, ValueError: the text quotes `num_proc`.
    """
    if num_proc is None:
        return
    if type(num_proc) is not int:
        raise TypeError(f"num_proc is the number of ranks, a whole number; it was {num_proc!r}.")
    if num_proc < 1:
        raise ValueError(f"num_proc={num_proc}: at least one rank is needed.")


def _say(text: str) -> None:
    print(f"spark_estimator: {text}", file=sys.stderr, flush=True)
