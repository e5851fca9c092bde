"""Asks Spark for the GPUs of a job's ranks where the session's tasks get none: a resource profile of one stage."""

from __future__ import annotations

import inspect

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.spark_settings import GPUS_PER_RANK
from spark_estimator.launch.spark.slots import Configuration, needs_profile, wanted_gpus


def profile_of(spark: SparkSession) -> ResourceProfile | None:
    """The profile of a job's stage; None where the session's own is right.

    It asks for tasks' resources only, so that the stage runs on the executors that there are: memory is theirs, and
    Spark starts others for a profile only under dynamic allocation, which starts no barrier stages.

    Raises:
        PreflightError: a number of GPUs was asked for that Spark 3.5 cannot express.
    """
    conf = Configuration(spark)
    if not needs_profile(conf):
        return None
    if "profile" not in inspect.signature(DataFrame.mapInArrow).parameters:
        if conf.get(GPUS_PER_RANK) is None:
            return None  # ranks see what their executors see
        raise PreflightError(
            f"{GPUS_PER_RANK} is {conf.get(GPUS_PER_RANK)}, but this Spark ({spark.version}) can't set it for a "
            "single job: start the session with spark.task.resource.gpu.amount, or use Spark 4."
        )
    # Without cpus beside it, Spark's check of barrier stages fails.
    asked = TaskResourceRequests().cpus(int(conf.number("spark.task.cpus") or 1))
    gpus = wanted_gpus(conf)
    if gpus:
        asked = asked.resource("gpu", gpus)
    profile = ResourceProfileBuilder().require(asked).build
    assert isinstance(profile, ResourceProfile)
    return profile
