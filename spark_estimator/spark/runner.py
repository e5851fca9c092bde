"""`spark.run` and `run_elastic`: call a function on ranks in Spark tasks, as in Horovod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import Settings
from spark_estimator.launch.cli.obsolete import explain, resolve_renamed
from spark_estimator.launch.job.attempts import Limits, to_timedelta
from spark_estimator.launch.job.options import JobOptions, check_elastic_sizes, check_num_proc
from spark_estimator.launch.job.pickling import check_call
from spark_estimator.launch.log_relay.display import TextStream, make_line_printer
from spark_estimator.launch.spark.entry import (
    add_start_timeout,
    explain_interruption,
    find_elastic_session,
    run_in_session,
)
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import choose_default_size
from spark_estimator.observe.driver_log import announce


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
    """Call ``fn(*args, **kwargs)`` on `num_proc` ranks, each in a Spark task, that start together.

    Runs in the active session, classic or Connect, or in a new local one.

    Args:
        fn: pickled by cloudpickle, with what it uses of the notebook or script; so are its arguments.
        num_proc: number of ranks. None: all slots of the session, or ``spark.default.parallelism`` if it is set
            to less.
        start_timeout: seconds until user code must have started on all ranks. None:
            `HOROVOD_SPARK_START_TIMEOUT`, 600 by default. More ranks than the session has slots are an immediate error.
            There is no timeout where executors can't connect to the driver and Spark doesn't report whether they run.
        env: variables for the ranks, in addition to those of their executors. Variables of this process that
            begin with ``HOROVOD_``, ``SPARK_ESTIMATOR_`` or ``NCCL_`` are always passed on. ``PYTHONPATH`` adds
            folders to the ranks' module search path.
        stdout, stderr: text streams for the ranks' lines, ``[rank]<stdout>:text``; None: those of this process.
            If executors can't connect to the driver, lines are sent through `SPARK_ESTIMATOR_LOG_DIR`; without
            it, only the last lines are shown, at the end.
        verbose: 0: only the ranks' lines; 1: also the default number of ranks, and a status line on a terminal or
            in a notebook; 2: also the host of each rank.
        prefix_output_with_timestamp: prefix each line with the time.
        max_restarts: how often all ranks start again if a rank dies, exits or raises an error, or an executor is
            lost; ``spark_estimator.launch.job.attempts`` lists the failures that are retried. `fn` finds the
            number of the attempt, from 1, in the variable `SPARK_ESTIMATOR_ATTEMPT`.
        timeout: seconds until the job's ranks are stopped, including the wait for slots and all attempts.
        use_mpi, use_gloo, extra_mpi_args, nics, executable: no effect, with a warning.

    Returns:
        [num_proc] what `fn` returned on each rank, in rank order; at most 64 MiB each when pickled.

    Raises:
        PreflightError: the job can't start; the text has the remedy.
        StartTimeoutError: not all ranks started in time; the text has the number of slots and what uses them.
        WorkerFailedError: a rank failed; its traceback is printed first, as the cause.
        ResultError: a rank's value could not be returned.
        JobTimeoutError: it took longer than `timeout`.
        JobCancelledError: the job was cancelled in Spark.
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
    options = make_job_options(
        args,
        kwargs,
        env=env,
        start_timeout=start_timeout,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
        max_restarts=max_restarts,
        timeout=timeout,
    )
    return run_with(fn, options, num_proc)


def make_job_options(
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    env_if_unset: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    stdout: TextStream | None = None,
    stderr: TextStream | None = None,
    verbose: int = 1,
    prefix_output_with_timestamp: bool = False,
    max_restarts: int = 0,
    timeout: float | None = None,
) -> JobOptions:
    """Check the arguments of `run` and make options of them; all ranks' values are returned.

    Args:
        env_if_unset: variables for the ranks whose executors don't set them.

    Raises:
        TypeError, ValueError: an argument can't be used; the text names it and its value.
    """
    return JobOptions(
        args=args,
        kwargs=kwargs,
        environment=env,
        environment_if_unset=env_if_unset or {},
        all_results=True,
        show_line=make_line_printer(stdout, stderr, with_time=prefix_output_with_timestamp),
        verbose=verbose,
        start_timeout=None if start_timeout is None else to_timedelta("start_timeout", start_timeout),
        limits=Limits.from_arguments(max_restarts, timeout),
    )


def run_with(
    fn: Callable[..., Any],
    options: JobOptions,
    num_proc: int | None = None,
    *,
    rows: Rows | None = None,
    caller: str | None = None,
    recovers: bool = False,
) -> list[Any]:
    """Call `fn` as `run` does, with its options in one value.

    Args:
        options, rows, caller, recovers: as in `run_in_session`.
    """
    check_num_proc(num_proc)

    def choose(spark: Any) -> int:
        size = choose_default_size(spark)
        if options.verbose >= 1:
            announce(f"running on {size} ranks (num_proc was not set)")
        return size

    return run_in_session(
        fn,
        choose if num_proc is None else num_proc,
        options,
        caller=caller or f"spark.run(num_proc={num_proc})",
        rows=rows,
        recovers=recovers,
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
    """Call ``fn(*args, **kwargs)`` on ranks in Spark tasks, in a job that continues when it loses ranks.

    `fn` uses ``hvd.elastic.run`` and a state; ``spark_estimator.elastic`` documents what is guaranteed. A lost
    rank, with its executor or alone, costs the work since the last commit; a new one replaces it at a commit,
    once there is a slot. Runs in the active session, classic or Connect, also with dynamic allocation, or in a
    new local one. The executors must be able to connect to this process.

    Args:
        num_proc: number of ranks to start with; fewer if the session has fewer slots, but at least
            `min_num_proc`. None: as in `run`.
        min_num_proc: smallest number of ranks to continue with, 1 <= min_num_proc <= num_proc. None: `num_proc`,
            so that the job waits for a replacement of each lost rank.
        max_num_proc: the job grows up to this number when there are slots. None: `num_proc`.
        start_timeout: seconds until all ranks of the first round must have a slot. None: as in `run`.
        elastic_timeout: seconds to wait for the ranks of a new round, and for new processes if there are too few.
            None: `HOROVOD_ELASTIC_TIMEOUT`, 600 by default.
        reset_limit: how often the ranks of the job may change. None: any number of times, as long as it commits.
        verbose: 0: only the ranks' lines; 1: also lost ranks and new rounds; 2: also the host of each process.
        nics: no effect, with a warning.
        min_np, max_np: deprecated names of min_num_proc, max_num_proc.

    The other arguments are as in `run`; a line shows the present rank of its process, -1 before it has one.

    Returns:
        What `fn` returned on the ranks that are left, in the order of their last ranks; at most 64 MiB each when
        pickled.

    Raises:
        PreflightError: the job can't start, or the executors can't connect to this process.
        StartTimeoutError: not all ranks had a slot in time; the text has the number of slots and what uses them.
        WorkerFailedError: the job can't continue; the text lists all lost ranks, and the first one's traceback is
            the cause.
        ResultError: a rank's value could not be returned.
        JobCancelledError: the job was cancelled in Spark.
    """
    explain({"nics": nics})
    min_num_proc = resolve_renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = resolve_renamed("max_np", max_np, "max_num_proc", max_num_proc)
    check_elastic_sizes(num_proc, min_num_proc, max_num_proc, reset_limit)
    options = make_job_options(
        args,
        kwargs,
        env=env,
        start_timeout=start_timeout,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
    )
    options = add_start_timeout(options)
    round_timeout = to_timedelta(
        "elastic_timeout", Settings.read().elastic_timeout_seconds if elastic_timeout is None else elastic_timeout
    )
    check_call(fn, args, kwargs)
    caller = f"spark.run_elastic(num_proc={num_proc})"
    with explain_interruption(caller):
        spark, size = find_elastic_session(num_proc, min_num_proc, caller)
    if max_num_proc is not None and num_proc is None:
        size = min(size, max_num_proc)
    requested = size if num_proc is None else num_proc
    if verbose >= 1 and num_proc != size:
        reason = "num_proc was not set" if num_proc is None else f"num_proc={num_proc}, but the session has fewer slots"
        announce(f"running on {size} ranks ({reason})")
    terms = Terms(
        size=size,
        min_size=requested if min_num_proc is None else min_num_proc,
        replace=True,
        reset_limit=reset_limit,
        timeout=round_timeout,
        max_size=max(requested, max_num_proc or 0),
        standby=Settings.read().standby,
    )
    from spark_estimator.launch.spark.elastic.job import run_elastic_on_spark

    with explain_interruption(caller):
        return run_elastic_on_spark(spark, fn, terms, options)
