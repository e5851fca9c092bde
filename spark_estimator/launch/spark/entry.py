"""The one door to jobs on Spark: finds the session, refuses what cannot run in it, runs. Imports no pyspark itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import NotEnoughSlotsError, PythonEnvironmentError
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.pickling import check_call
from spark_estimator.launch.job.spec import MAX_RESULT_BYTES
from spark_estimator.launch.spark.row_writer import Rows
from spark_estimator.launch.spark.slots import (
    check_encryption,
    check_session,
    count_slots,
    default_size,
    has_dynamic_allocation,
    require_slots,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How many ranks: a number, or what chooses one for the session.
Size = int | Callable[["SparkSession"], int]
_NO_LIMITS = Limits()


def run_in_session(
    function: Callable[..., Any],
    size: Size,
    *,
    caller: str,
    size_word: str = "num_proc",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    environment_if_unset: Mapping[str, str] | None = None,
    all_results: bool = False,
    show_line: Callable[[int, str, str], None] | None = None,
    show_status: bool = False,
    say: Callable[[str], None] | None = None,
    start_timeout: timedelta | None = None,
    rows: Rows | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    limits: Limits = _NO_LIMITS,
) -> list[Any]:
    """Calls ``function(*args, **kwargs)`` on ranks in the Spark session that there is, or in a new local one.

    Args:
        caller: how messages call what the user has called: ``spark.run(num_proc=2)``.
        size_word: the argument by which its user says how many ranks.
        The others are as in ``spark.run_on_spark``.

    Returns:
        The return values that are wanted, in rank order.

    Raises:
        TypeError: as `check_call`.
        PreflightError: the job was refused before it started; the text says what to change.
        KeyboardInterrupt: somebody interrupted it; the text says so, and that nothing of it is left.
        Others as ``spark.run_on_spark``.
    """
    check_call(function, args, kwargs)
    with interruption_in_words(caller):
        spark, number = session_and_size(size, caller, size_word)
        from spark_estimator.launch.spark.barrier_job import run_on_spark

        return run_on_spark(
            spark,
            function,
            number,
            args=args,
            kwargs=kwargs,
            environment=environment,
            environment_if_unset=environment_if_unset,
            all_results=all_results,
            show_line=show_line,
            show_status=show_status,
            say=say,
            start_timeout=start_timeout,
            rows=rows,
            max_result_bytes=max_result_bytes,
            limits=limits,
        )


@contextlib.contextmanager
def interruption_in_words(caller: str) -> Iterator[None]:
    """An interruption of the block says what was interrupted, and py4j does not tell of it with its own stacks.

    Args:
        caller: as in `run_in_session`.
    """
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        ours = record.thread == thread and record.getMessage().endswith("while sending command.")
        return not (ours and record.exc_info and _is_interruption(record.exc_info[1]))

    root = logging.getLogger()  # by which py4j logs this
    root.addFilter(keep)
    try:
        yield
    except KeyboardInterrupt as interruption:
        if str(interruption):
            raise
        raise KeyboardInterrupt(f"{caller} was interrupted while none of its ranks was at work") from None
    finally:
        root.removeFilter(keep)


def _is_interruption(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or what came of PySpark's handler calling Java while this thread was doing so."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return True
        error = error.__context__
    return False


def session_and_size(size: Size, caller: str, size_word: str = "num_proc") -> tuple[SparkSession, int]:
    """The session in which a job would run, and its number of ranks, for which there are slots.

    Raises:
        PreflightError: it could not run.
    """
    spark = _session(0 if callable(size) else size, caller)
    check_session(spark)
    check_encryption(spark)
    if callable(size):
        return spark, size(spark)
    require_slots(spark, size, size_word=size_word)
    return spark, size


def session_for_elastic(size: int | None, least: int | None, caller: str) -> tuple[SparkSession, int]:
    """The session in which an elastic job would run, and with how many ranks it would begin: those that have slots.

    Args:
        size: number of ranks that it is to begin with; None: as many as `default_size` says.
        least: it may begin with so few; None: with `size` alone.

    Raises:
        PreflightError: it could not run.
    """
    spark = _session(size or 0, caller)
    check_session(spark, together=False)
    check_encryption(spark)
    if size is None:
        found = default_size(spark)
        require_slots(spark, max(found, least or 0), size_word="num_proc")
        return spark, found
    if has_dynamic_allocation(spark):
        return spark, size  # executors come once there are tasks for them
    try:
        require_slots(spark, size, size_word="num_proc")
    except NotEnoughSlotsError:
        if least is None or least >= size:
            raise
        require_slots(spark, least, size_word="min_num_proc")
        return spark, count_slots(spark).count or size
    return spark, size


def _session(size: int, caller: str) -> SparkSession:
    """The session that there is, or a new one for so many ranks; 0: as many as there are cores."""
    try:
        import spark_estimator.launch.spark.barrier_job  # noqa: F401  # needs more than the session does
        from spark_estimator.launch.spark.session import session_for
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            f"{caller} runs in Spark, but there is no module {error.name!r} here: pip install "
            "'spark-estimator[spark]', or run on this machine without Spark (HorovodRunner with a negative np, "
            "spark_estimator.run)."
        ) from error
    return session_for(size)
