"""The settings of a Spark session that decide where ranks can run, and how many."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_estimator.launch.job.spark_settings import GPUS_PER_RANK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GPUS_PER_TASK = "spark.task.resource.gpu.amount"
GPUS_PER_EXECUTOR = "spark.executor.resource.gpu.amount"
LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]")
# The answer of SQL's SET for a setting that is not set.
UNDEFINED = "<undefined>"


class Configuration:
    """The settings of a session, as far as they can be read."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def get(self, name: str) -> str | None:
        """Return the value of a setting; None when it is not set, or may not be seen."""
        try:
            return self._spark.conf.get(name, None)
        except Exception:  # some platforms forbid reading some settings
            return None

    def get_or_raise(self, name: str) -> str | None:
        """Return a setting; None only when it is not set. Raises the session's error where it isn't shown."""
        try:
            return self._spark.conf.get(name, None)
        except Exception:  # a session that forbids Java may still answer SQL
            value = str(self._spark.sql(f"SET {name}").collect()[0][1])
            return None if value == UNDEFINED else value

    def get_number(self, name: str) -> float | None:
        """Return the value of a numeric setting; None when it is not set or not a number."""
        try:
            return float(self.get(name) or "")
        except ValueError:
            return None

    def is_true(self, name: str) -> bool:
        """Return whether a setting is switched on."""
        return is_true(self.get(name))

    @property
    def master(self) -> str:
        """Return the master of the session: ``local[2]``, ``spark://...``; '' if it is unknown."""
        return self.get("spark.master") or ""

    @property
    def is_local(self) -> bool:
        """Return whether executor and driver are one process."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None


def is_true(value: str | None) -> bool:
    """Return whether the value of a setting switches it on."""
    return (value or "").strip().lower() == "true"


def get_gpus_per_rank(conf: Configuration) -> float:
    """Return how many GPUs, or which part of one, each rank gets; 0 for none.

    The value of `GPUS_PER_RANK`; else what the session asks for every task; else, one, if its executors have GPUs
    that no task asks for.
    """
    if conf.is_local:
        return 0.0
    gpus = conf.get_number(GPUS_PER_RANK)
    per_task = conf.get_number(GPUS_PER_TASK) if gpus is None else gpus
    if per_task is None:
        return 1.0 if conf.get_number(GPUS_PER_EXECUTOR) else 0.0
    return per_task


def needs_profile(conf: Configuration) -> bool:
    """Return whether ranks want other GPUs than the session's tasks get: this stage then needs its own profile."""
    return get_gpus_per_rank(conf) != (conf.get_number(GPUS_PER_TASK) or 0.0) and not conf.is_local


def get_executor_cores(conf: Configuration) -> int | None:
    """Return the cores of each executor; None if the settings do not define it."""
    if match := LOCAL_CLUSTER.fullmatch(conf.master):
        return int(match[2])
    cores = conf.get_number("spark.executor.cores")
    return int(cores) if cores else None
