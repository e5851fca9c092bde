"""Runs a job on Spark that replaces its lost ranks one by one, and starts again as a whole where that is not enough.

For functions that continue after the loss of a rank, also with another number of ranks: within a step
(``hvd.elastic.run(mode="step")``) or from their last checkpoint (`estimators.restarting`). If no
process replaces a lost rank within ``SPARK_ESTIMATOR_REPLACE_WITHIN``, the others continue without it, and a process
that comes later joins them. Of ``max_restarts``, each of these three takes one, and so does each start of all ranks.
The whole job starts again when no rank is left that has the state, as after the loss of the only executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import Settings
from spark_estimator.errors import JobFailedError
from spark_estimator.launch.elastic.job import Following
from spark_estimator.launch.job.attempts import Attempt, run_attempts
from spark_estimator.launch.job.failures import FailureReport, find_first_failure, make_job_error
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.pickling import describe_function
from spark_estimator.launch.spark.elastic.job import run_elastic_on_spark
from spark_estimator.launch.spark.slots import require_slots
from spark_estimator.launch.spark.stage_job import NEW_EXECUTOR


def run_replacing(spark: SparkSession, function: Callable[..., Any], size: int, options: JobOptions) -> list[Any]:
    """Call `function` as ``stage_job.run_on_spark`` with all results; a lost rank ends no other process.

    Return the values of the ranks that returned, in the order of their last ranks; there may be fewer than `size`.
    """
    name = describe_function(function)
    limits = options.limits
    settings = Settings.read()
    timeout = timedelta(seconds=settings.elastic_timeout_seconds)
    replacements = 0

    def count_replacement(_round: int) -> None:
        nonlocal replacements
        replacements += 1

    def make_error(why: str, earlier: Sequence[FailureReport], last: Sequence[FailureReport]) -> BaseException:
        cause = find_first_failure(last) or find_first_failure(earlier)
        if cause is None:
            return JobFailedError(f"{name} can't continue: {why}.")
        made = make_job_error(cause, last or [cause], size, name)
        if replacements:
            made.args = (
                f"{made}\n{_describe_replacements(replacements, [each for each in earlier if each is not cause])}",
            )
        return made

    def run(attempt: Attempt) -> list[Any]:
        left = max(limits.max_restarts + 1 - attempt.number - replacements, 0)
        patience = timedelta(seconds=settings.replace_within_seconds)
        terms = Terms(
            size, 1, replace=True, reset_limit=left, timeout=timeout, standby=settings.standby, patience=patience
        )
        # Lost ranks are announced even where the ranks' progress is not shown.
        loud = replace(options, verbose=max(options.verbose, 1), progress=options.progress_display)
        return run_elastic_on_spark(
            spark,
            function,
            terms,
            loud,
            attempt=attempt,
            following=Following(began=count_replacement, error=make_error),
        )

    def recover(attempt: Attempt) -> None:
        require_slots(spark, size, attempt.limit_wait(NEW_EXECUTOR))

    return run_attempts(run, limits, name, recover=recover, replaced=lambda: replacements)


def _describe_replacements(count: int, earlier: Sequence[FailureReport]) -> str:
    lines = [f"The job continued {count} times after a loss (each takes one of max_restarts)"]
    lines += [f"  {report.where} {report.message.splitlines()[0]}" for report in earlier if not report.secondary]
    return "\n".join(lines)
