"""Turns Spark's errors about a workers' Python that cannot run a job into one sentence with the setting to change."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator

from spark_estimator import __version__
from spark_estimator.errors import (
    DataError,
    JobCancelledError,
    JobFailedError,
    NotEnoughSlotsError,
    PreflightError,
    PythonEnvironmentError,
    ResultError,
    SparkEstimatorError,
    find_task_error,
)
from spark_estimator.launch.job.failures import shorten
from spark_estimator.launch.job.spark_settings import BARRIER
from spark_estimator.launch.spark.executor_losses import describe_loss, find_lost_executor

_MODULES = {
    "spark_estimator": "pip install the wheel that the driver has (spark_estimator-*.whl)",
    "pyarrow": "pip install pyarrow",
    "pandas": "pip install pandas",
    "numpy": "pip install numpy",
    "cloudpickle": "pip install cloudpickle",
    "pyspark": "pip install pyspark",
}


def describe_python_setting() -> str:
    """Return which setting decides what Python the workers run."""
    return (
        "Spark runs `python3` from PATH by default: set the environment variable "
        f"PYSPARK_PYTHON={sys.executable} before the Spark session is created (or, with spark-submit, "
        "--conf spark.pyspark.python=...; on a cluster, a path that exists on every worker)"
    )


def explain(text: str) -> SparkEstimatorError | None:
    """Return the error for Spark's `text`, if it is a common one that Spark explains badly; else None."""
    mine = ".".join(map(str, sys.version_info[:2]))
    if "PYTHON_VERSION_MISMATCH" in text or re.search(r"different (?:minor )?version .{0,20}than that in driver", text):
        match = re.search(r"worker[^\d]{0,40}(\d+\.\d+)", text)
        theirs = f"Python {match[1]}" if match else "another Python"
        return PythonEnvironmentError(
            f"Spark's workers run {theirs}, but the driver runs Python {mine}, and pickled functions can't be loaded "
            f"across Python versions. {describe_python_setting()}."
        )
    if match := re.search(r"No module named '([\w.]+)'", text):
        name = match[1].partition(".")[0]
        if name in _MODULES:
            install = _MODULES[name]
            return PythonEnvironmentError(
                f"the Python of Spark's workers has no module {name!r}. {describe_python_setting()}; or install it "
                f"there: {install}"
            )
    if re.search(r"Can't get attribute '\w+' on <module 'spark_estimator\b|'JobSpec' object has no attribute", text):
        return PythonEnvironmentError(
            "the Python of Spark's workers has a different version of spark_estimator than the driver, which can't "
            f"read its jobs: install spark_estimator {__version__} there, or the same wheel on both. "
            f"{describe_python_setting()}."
        )
    if match := re.search(
        r"(?:PACKAGE_NOT_INSTALLED\] |ImportError: )(\w+) ?(?:>=)? ?([\d.]*) must be installed", text
    ):
        return PythonEnvironmentError(
            f"the Python of Spark's workers lacks {match[1]} {match[2]}. {describe_python_setting()}."
        )
    if match := re.search(r'Cannot run program "([^"]+)"', text):
        return PythonEnvironmentError(
            f"Spark cannot start its workers' Python: there is no {match[1]!r} on their host. "
            f"{describe_python_setting()}."
        )
    if "SPARK-24819" in text or "BARRIER_STAGE_REQUIRES_MORE_SLOTS" in text:
        match = re.search(r"requires? (?:more )?(\d+)? ?slots.*?only (\d+)", text)
        known = f" ({match[0]})" if match else ""
        return NotEnoughSlotsError(
            f"Spark doesn't have a slot for every rank{known}. Use fewer ranks, or a session with more executors or "
            "cores."
        )
    if match := re.search(
        r"Total size of serialized results of .* bigger than spark\.driver\.maxResultSize \(.*?\)", text
    ):
        return ResultError(
            f"the values that the ranks returned are too large together: {match[0]}. Return less (save it to storage "
            "and return the path), or start the session with a larger spark.driver.maxResultSize."
        )
    if "unread block data" in text:  # Java's words where the memory has run out while a result was read
        return ResultError(
            "Spark could not read the values that the ranks returned (unread block data): the driver's JVM needs about "
            "ten times as much memory as they have together. Return less (save it to storage and return the path), or "
            "start the session with a larger spark.driver.memory."
        )
    if match := re.search(r"(Sent message larger than max|gRPC message exceeds maximum size)[^\"\n]*", text):
        return PreflightError(
            "the function and its arguments, such as a model, are larger than a message of Spark Connect may be "
            f"({match[0]}). Use a classic session, or a smaller model."
        )
    if "SPARK-24942" in text:
        return NotEnoughSlotsError(
            "Spark doesn't start barrier stages with dynamic allocation, which this session doesn't show. Set "
            f"{BARRIER}=false in it, or start it with spark.dynamicAllocation.enabled=false."
        )
    return None


@contextlib.contextmanager
def raise_task_errors() -> Iterator[None]:
    """Raise as itself a `DataError` or `DeviceError` that a task of Spark, or a rank, raises in the block.

    Its ``__cause__`` is Spark's error, or the `WorkerFailedError` on the rank that noticed it first.
    """
    try:
        yield
    except JobFailedError as error:
        of_rank = find_task_error(error) if error.cause_class == DataError.__name__ else None
        if of_rank is None:
            raise
        raise of_rank from error
    except SparkEstimatorError:
        raise
    except Exception as error:
        of_task = find_task_error(error)
        if of_task is None:
            raise
        raise of_task from error


def find_cancellation(text: str, function: str) -> JobCancelledError | None:
    """Return the error for Spark's `text` when the job was cancelled, or its stage was killed; else None."""
    pattern = r"\[SPARK_JOB_CANCELLED\]|\[OPERATION_CANCELED\]|Job \d+ (?:was )?cancelled\b|Stage \d+ was cancelled\b"
    match = re.search(rf"(?:{pattern})[^\n]*", text)
    if match is None:
        return None
    reason = re.sub(r"\s*SQLSTATE: \w+", "", match[0]).strip().rstrip(".")
    return JobCancelledError(f"{function} was cancelled in Spark, and its ranks were stopped: {reason}.")


def make_spark_error(error: BaseException, function: str) -> JobFailedError:
    """Make the error for one without an explanation: the core of Spark's message; the whole is its `traceback`."""
    # Not as the cause: forty lines of Java would precede the useful sentence.
    lost = find_lost_executor(str(error))
    if lost is None:
        text = f"Spark ended the job before the ranks could report: {find_telling_line(error)}"
    else:
        why = describe_loss(lost[1]) or "has died or was cut off"
        text = f"a Spark executor that had ranks of {function} {why}; see its log"
    return JobFailedError(text, traceback=shorten(str(error)))


def find_telling_line(error: BaseException) -> str:
    """Return the line of Spark's message with the cause, of at most 500 characters."""
    lines = [
        line.strip().lstrip(": ") for line in str(error).splitlines() if not line.lstrip().startswith(("at ", "..."))
    ]
    lines = [line for line in lines if line]
    return next(
        (line for line in lines if re.search(r"(?:Exception|Error)\b.*:", line)), lines[0] if lines else repr(error)
    )[:500]
