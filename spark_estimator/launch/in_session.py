"""The one door to jobs on Spark: finds the session, refuses what cannot run in it, runs. Imports no pyspark itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import PythonEnvironmentError
from spark_estimator.launch.attempts import Limits
from spark_estimator.launch.feed import Rows
from spark_estimator.launch.slots import check_encryption, check_session, require_slots
from spark_estimator.launch.spec import MAX_RESULT_BYTES

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
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    environment_if_unset: Mapping[str, str] | None = None,
    all_results: bool = False,
    show_line: Callable[[int, str, str], None] | None = None,
    say: Callable[[str], None] | None = None,
    start_timeout: timedelta | None = None,
    rows: Rows | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    limits: Limits = _NO_LIMITS,
) -> list[Any]:
    """Calls ``function(*args, **kwargs)`` on ranks in the Spark session that there is, or in a new local one.

    Args:
        caller: how messages call what the user has called: ``spark.run(num_proc=2)``.
        The others are as in ``spark.run_on_spark``.

    Returns:
        The return values that are wanted, in rank order.

    Raises:
        PreflightError: the job was refused before it started; the text says what to change.
        Others as ``spark.run_on_spark``.
    """
    spark, number = session_and_size(size, caller)
    from spark_estimator.launch.spark import run_on_spark

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
        say=say,
        start_timeout=start_timeout,
        rows=rows,
        max_result_bytes=max_result_bytes,
        limits=limits,
    )


def session_and_size(size: Size, caller: str) -> tuple[SparkSession, int]:
    """The session in which a job would run, and its number of ranks, for which there are slots.

    Raises:
        PreflightError: it could not run.
    """
    try:
        import spark_estimator.launch.spark  # noqa: F401  # needs more than the session does
        from spark_estimator.launch.spark_session import session_for
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            f"{caller} runs in Spark, but there is no module {error.name!r} here: pip install "
            "'spark-estimator[spark]', or run on this machine without Spark (HorovodRunner with a negative np, "
            "spark_estimator.run)."
        ) from error
    spark = session_for(0 if callable(size) else size)
    check_session(spark)
    check_encryption(spark)
    if callable(size):
        return spark, size(spark)
    require_slots(spark, size)
    return spark, size
