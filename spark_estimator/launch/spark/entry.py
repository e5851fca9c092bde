"""The entry point of all jobs on Spark: finds the session, refuses jobs that cannot run in it, runs the others.

Imports no pyspark itself.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator.env import Settings
from spark_estimator.errors import (
    JobFailedError,
    NotEnoughSlotsError,
    PreflightError,
    PythonEnvironmentError,
    SparkEstimatorError,
)
from spark_estimator.launch.job.interruption import is_interruption, remember_interruption
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.pickling import check_call
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.dynamic_allocation import grows_on_demand
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import (
    check_session,
    choose_default_size,
    count_slots,
    find_slot_limit,
    require_slots,
)
from spark_estimator.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

#: How many ranks: a number, or what chooses one for the session.
Size = int | Callable[["SparkSession"], int]


def run_in_session(
    function: Callable[..., Any],
    size: Size,
    options: JobOptions,
    *,
    caller: str,
    size_word: str = "num_proc",
    rows: Rows | None = None,
    recovers: bool = False,
) -> list[Any]:
    """Call `function` on ranks in the active Spark session, or in a new local one.

    Args:
        caller: the user's call, for messages: ``spark.run(num_proc=2)``.
        size_word: the name of its argument for the number of ranks.
        options, rows: as in ``stage_job.run_on_spark``; without a start_timeout, see `add_start_timeout`.
        recovers: `function` continues after the loss of a rank if its job is elastic, and may end on fewer ranks.
            This counts where the options allow restarts, there are no rows, and the executors reach this process.

    Returns:
        Rank 0's value, or all ranks' values in rank order.

    Raises:
        TypeError: as `check_call`.
        PreflightError: the job can't start; the text has the remedy.
        KeyboardInterrupt: the user interrupted it; all ranks have ended.
        Others as ``stage_job.run_on_spark``.
    """
    check_call(function, options.args, options.kwargs)
    options = add_start_timeout(options, has_rows=rows is not None)
    with explain_interruption(caller):
        spark, number = find_session_and_size(size, caller, size_word)
        return _run(spark, function, number, options, rows, recovers)


@remember_interruption()  # once more: a new session has a new handler
def _run(
    spark: SparkSession,
    function: Callable[..., Any],
    number: int,
    options: JobOptions,
    rows: Rows | None,
    recovers: bool,
) -> list[Any]:
    """Run the job as `run_in_session`, in its session."""
    replaces = recovers and rows is None and options.limits.max_restarts
    if replaces and Settings.read().driver_channel:  # by which single ranks are replaced
        from spark_estimator.launch.spark.elastic.replacing import run_replacing

        try:
            return run_replacing(spark, function, number, options)
        except PreflightError as error:
            if isinstance(error.__cause__, JobFailedError):  # it had started before
                raise
            _log.warning("A lost rank will restart all ranks, and will not be replaced alone: %s", error)
    from spark_estimator.launch.spark.stage_job import run_on_spark

    return run_on_spark(spark, function, number, options, rows=rows)


def add_start_timeout(options: JobOptions, *, has_rows: bool = False) -> JobOptions:
    """Return the options, with `HOROVOD_SPARK_START_TIMEOUT` where they have no start_timeout.

    With rows, which Spark may compute for any time, the variable counts only where it is set.
    """
    settings = Settings.read()
    if options.start_timeout is not None or (has_rows and not settings.is_set("spark_start_timeout_seconds")):
        return options
    return replace(options, start_timeout=timedelta(seconds=settings.spark_start_timeout_seconds))


@contextlib.contextmanager
def explain_interruption(caller: str) -> Iterator[None]:
    """Have an interruption of the block name the interrupted call, `caller`; py4j logs no stacks for it."""
    thread = threading.get_ident()
    handled = sys.exc_info()[1]  # the caller may call from an except clause

    def keep(record: logging.LogRecord) -> bool:
        ours = record.thread == thread and record.getMessage().endswith("while sending command.")
        return not (ours and record.exc_info and is_interruption(record.exc_info[1]))

    root = logging.getLogger()  # by which py4j logs this
    root.addFilter(keep)
    try:
        with remember_interruption():
            yield
    except KeyboardInterrupt as interruption:
        if str(interruption):
            raise
        raise KeyboardInterrupt(f"{caller} was interrupted while no rank was running") from None
    except Exception as error:
        # py4j raises its own error for an interruption in the middle of a command.
        if isinstance(error, SparkEstimatorError) or not is_interruption(error, handled):
            raise
        raise KeyboardInterrupt(f"{caller} was interrupted while it called Spark") from None
    finally:
        root.removeFilter(keep)


def find_session_and_size(size: Size, caller: str, size_word: str = "num_proc") -> tuple[SparkSession, int]:
    """Return the session in which a job would run, and its number of ranks. Raises PreflightError: it could not run."""
    spark = _find_or_make_session(0 if callable(size) else size, caller)
    check_session(spark)
    if callable(size):
        return spark, size(spark)
    require_slots(spark, size, size_word=size_word)
    return spark, size


def find_elastic_session(size: int | None, least: int | None, caller: str) -> tuple[SparkSession, int]:
    """Return the session of an elastic job, and its first number of ranks, from `least` to `size`.

    Without `size` it is `choose_default_size`. Raises PreflightError: the job could not run.
    """
    spark = _find_or_make_session(size or 0, caller)
    check_session(spark, together=False)
    if size is None:
        available = choose_default_size(spark)
        require_slots(spark, max(available, least or 0), size_word="num_proc")
        return spark, available
    try:
        require_slots(spark, size, size_word="num_proc")
    except NotEnoughSlotsError:
        if least is None or least >= size:
            raise
        require_slots(spark, least, size_word="min_num_proc")
        if grows_on_demand(Configuration(spark)):
            limit = find_slot_limit(spark, size)
            return spark, size if limit is None else limit.count
        return spark, count_slots(spark).count or size
    return spark, size


def _find_or_make_session(size: int, caller: str) -> SparkSession:
    """Return the existing session, or a new one for `size` ranks; 0: one rank per core."""
    try:
        import spark_estimator.launch.spark.stage_job  # noqa: F401  # needs more than the session does
        from spark_estimator.launch.spark.session import find_or_make_session
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            f"{caller} runs in Spark, but this Python has no module {error.name!r}: pip install pyspark pyarrow "
            "pandas, or run on this machine without Spark (HorovodRunner with a negative np, spark_estimator.run)."
        ) from error
    return find_or_make_session(size)
