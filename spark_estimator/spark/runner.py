"""`spark.run` and `run_elastic`: Horovod's ways to call a function on Spark, with all ranks' values as the answer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from spark_estimator.elastic.rounds import Terms
from spark_estimator.env import Settings
from spark_estimator.launch.cli.obsolete import explain, renamed
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.pickling import check_call
from spark_estimator.launch.job.spec import MAX_RESULT_BYTES, checked_environment
from spark_estimator.launch.spark.entry import interruption_in_words, run_in_session, session_for_elastic
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import default_size
from spark_estimator.launch.worker.output import TextStream, lines_to


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
            the driver cannot be reached from the executors, they come by `SPARK_ESTIMATOR_LOG_DIR`, else the last ones
            at the end.
        verbose: 0: nothing but the ranks' lines; 1: also how many ranks were chosen, and on a terminal or in a notebook
            a status line; 2: also where each of them runs.
        prefix_output_with_timestamp: the time stands in front of each line.
        max_restarts: how often a job that failed (a rank died or raised, an executor was lost) is started anew as a
            whole; ``spark_estimator.launch.job.attempts`` says which failures are retried. `fn` finds the number of
            the attempt, from 1, in the variable `SPARK_ESTIMATOR_ATTEMPT`.
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
    rows: Rows | None = None,
    caller: str | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    all_results: bool = True,
) -> list[Any]:
    """As `run`, without what has no effect.

    Args:
        env_if_unset: variables for the ranks whose executors have not set them otherwise.
        rows, caller, max_result_bytes, all_results: as in `run_in_session`. With rows, and no start_timeout, Spark may
            take as long as it needs to compute them.
    """
    check_num_proc(num_proc)
    limits = Limits.checked(max_restarts, timeout)
    to_start: timedelta | None = None
    if start_timeout is not None or rows is None:
        to_start = seconds_of("start_timeout", start_timeout, Settings.read().spark_start_timeout_seconds)

    def chosen(spark: Any) -> int:
        size = default_size(spark)
        if verbose >= 1:
            say(f"{size} ranks, which is what the session has room for (num_proc was not given)")
        return size

    return run_in_session(
        fn,
        chosen if num_proc is None else num_proc,
        caller=caller or f"spark.run(num_proc={num_proc})",
        args=args,
        kwargs=kwargs,
        environment=env,
        environment_if_unset=env_if_unset,
        all_results=all_results,
        show_line=lines_to(stdout, stderr, with_time=prefix_output_with_timestamp),
        show_status=verbose >= 1,
        say=say if verbose >= 2 else None,
        start_timeout=to_start,
        rows=rows,
        max_result_bytes=max_result_bytes,
        limits=limits,
    )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextStream | None = None,
    stderr: TextStream | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on ranks in Spark tasks, in a job that goes on when it loses some of them.

    `fn` uses ``hvd.elastic.run`` and a state; what holds in which order is told in ``spark_estimator.elastic``. A rank
    that is lost, with its executor or alone, costs the work since the last commit; a new one takes its place at a
    commit, once there is a slot for it. Runs in the session that there is, classic or Connect, also with dynamic
    allocation, or in a new local one. The executors must be able to connect to this process.

    Args:
        num_proc: number of ranks to begin with; fewer, but no fewer than `min_num_proc`, where the session has not so
            many slots. None: as in `run`.
        min_num_proc: the least to go on with, 1 <= min_num_proc <= num_proc. None: `num_proc`, so that the job waits
            for each rank that it has lost.
        max_num_proc: there are as many when there are slots. None: `num_proc`.
        start_timeout: seconds until all ranks of the first round must have a slot. None: as in `run`.
        elastic_timeout: seconds to wait for the ranks of a new round, and for new ones without which there are too
            few. None: `HOROVOD_ELASTIC_TIMEOUT`, 600 by default.
        reset_limit: how often the job may be made of other ranks. None: any number, as long as it commits.
        verbose: 0: nothing but the ranks' lines; 1: also what becomes of the job; 2: also where each process runs.
        nics: without effect here; a warning says why.
        min_np, max_np: deprecated names of min_num_proc, max_num_proc.
        The others are as in `run`; a line's rank is the present one, -1 before a process has one.

    Returns:
        What `fn` returned on those that are left, in the order of their last ranks; at most 64 MiB each when pickled.

    Raises:
        PreflightError: the job was refused before it started, or the executors cannot reach this process.
        StartTimeoutError: not all ranks had a slot in time; the text says how many there are and who holds them.
        WorkerFailedError: it cannot go on; the text names all ranks that were lost, the first one's traceback is the
            cause.
        ResultError: a rank's value could not be brought back.
        JobCancelledError: somebody cancelled it in Spark.
    """
    explain({"nics": nics})
    min_num_proc = renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = renamed("max_np", max_np, "max_num_proc", max_num_proc)
    check_num_proc(num_proc)
    check_num_proc(min_num_proc, "min_num_proc")
    check_num_proc(max_num_proc, "max_num_proc")
    for less, more in (("min_num_proc", "num_proc"), ("min_num_proc", "max_num_proc"), ("num_proc", "max_num_proc")):
        asked = {"num_proc": num_proc, "min_num_proc": min_num_proc, "max_num_proc": max_num_proc}
        low, high = asked[less], asked[more]
        if low is not None and high is not None and low > high:
            raise ValueError(f"{less}={low} is more than {more}={high}.")
    if reset_limit is not None and (type(reset_limit) is not int or reset_limit < 0):
        raise ValueError(f"reset_limit is how often the job may be made of other ranks; it was {reset_limit!r}.")
    settings = Settings.read()
    to_start = seconds_of("start_timeout", start_timeout, settings.spark_start_timeout_seconds)
    to_gather = seconds_of("elastic_timeout", elastic_timeout, settings.elastic_timeout_seconds)
    check_call(fn, args, kwargs)
    checked_environment(env)
    show_line = lines_to(stdout, stderr, with_time=prefix_output_with_timestamp)
    caller = f"spark.run_elastic(num_proc={num_proc})"
    with interruption_in_words(caller):
        spark, size = session_for_elastic(num_proc, min_num_proc, caller)
    if max_num_proc is not None and num_proc is None:
        size = min(size, max_num_proc)
    wanted = size if num_proc is None else num_proc
    if verbose >= 1 and num_proc != size:
        say(
            f"{size} ranks, which is what the session has room for "
            + ("(num_proc was not given)" if num_proc is None else f"(num_proc is {num_proc})")
        )
    terms = Terms(
        size=size,
        min_size=wanted if min_num_proc is None else min_num_proc,
        replace=True,
        reset_limit=reset_limit,
        timeout=to_gather,
        max_size=max(wanted, max_num_proc or 0),
    )
    from spark_estimator.launch.spark.elastic_job import run_elastic_on_spark

    with interruption_in_words(caller):
        return run_elastic_on_spark(
            spark,
            fn,
            terms,
            args=args,
            kwargs=kwargs,
            environment=env,
            show_line=show_line,
            say=say if verbose >= 1 else lambda text: None,
            start_timeout=to_start,
            tell_places=verbose >= 2,
        )


def check_num_proc(num_proc: int | None, name: str = "num_proc") -> None:
    """Refuses what is no number of ranks.

    Args:
        name: how the user has called it.

    Raises:
        TypeError, ValueError: the text quotes `num_proc`.
    """
    if num_proc is None:
        return
    if type(num_proc) is not int:
        raise TypeError(f"{name} is the number of ranks, a whole number; it was {num_proc!r}.")
    if num_proc < 1:
        raise ValueError(f"{name}={num_proc}: at least one rank is needed.")


def seconds_of(name: str, given: float | None, default: float) -> timedelta:
    """An argument in seconds, or its default. Raises ValueError when it is no finite number above 0."""
    seconds = default if given is None else given
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise ValueError(f"{name} is a number of seconds, more than 0; it was {seconds!r}.")
    return timedelta(seconds=seconds)


def say(text: str) -> None:
    """Tells the user a line, on stderr."""
    print(f"spark_estimator: {text}", file=sys.stderr, flush=True)
