"""Learns which executors Spark is about to end, of the tasks of an elastic job (``spark.decommission.enabled``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import SparkSession

from spark_estimator.env import Settings
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.session import find_session

_ENABLED = "spark.decommission.enabled"
_MOST_TASKS = 100  # of a stage: those of elastic jobs have one, and its earlier attempts


def can_warn(spark: SparkSession) -> bool:
    """Return whether Spark tells this driver of executors before it ends them: in a classic session."""
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return not is_connect and Configuration(spark).is_true(_ENABLED)


def expects_warnings(*, replaces: bool) -> bool:
    """Return whether ranks of the present session may be warned before they lose their machine.

    Args:
        replaces: the job replaces lost ranks; no other learns of decommissioning.
    """
    settings, spark = Settings.read(), find_session()
    by_variables = bool(settings.preemption_signal or settings.preemption_command)
    return by_variables or (replaces and spark is not None and can_warn(spark))


def find_leaving_executor(spark: SparkSession, stages: Callable[[], Iterable[int]]) -> str:
    """Return the executor that runs a task of these stages and is about to end; '' for none, or if it is not known."""
    session: Any = spark
    try:
        context = session.sparkContext._jsc.sc()
        store, scheduler = context.statusStore(), context.taskScheduler()
        for stage in stages():
            tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _MOST_TASKS)
            for task in (tasks.apply(number) for number in range(tasks.size())):
                executor = str(task.executorId())
                if str(task.status()) == "RUNNING" and scheduler.getExecutorDecommissionState(executor).isDefined():
                    return executor
    except Exception:  # a stopped session, one that forbids Java, or a store that is a moment behind
        return ""
    return ""
