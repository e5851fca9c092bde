"""Makes the DataFrame whose tasks run a job's ranks: in a barrier stage (also on Spark 3.4), or in a plain one.

Where the session's tasks get no GPUs, the stage has a resource profile that asks Spark for them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.resource import ExecutorResourceRequests, ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.spark_settings import GPUS_PER_RANK
from spark_estimator.launch.spark.configuration import (
    GPUS_PER_EXECUTOR,
    Configuration,
    get_executor_cores,
    get_gpus_per_rank,
    needs_profile,
)
from spark_estimator.launch.spark.dynamic_allocation import has_dynamic_allocation

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class _BarrierRdd:
    """A DataFrame, the last stage of which becomes a barrier stage."""

    frame: DataFrame

    def collect(self) -> list[Any]:
        """Collect its rows. Making the RDD already runs the stages before the last."""
        # Still one stage: the rows pass through `iter` in the very tasks that make them.
        return self.frame.rdd.barrier().mapPartitions(iter).collect()


def make_rank_stage(
    frame: DataFrame,
    task: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]],
    schema: str,
    *,
    barrier: bool,
    profile: ResourceProfile | None = None,
) -> Any:
    """Make a frame whose ``collect`` runs `task` in one Spark task for each partition of `frame`.

    Without `barrier` each starts once there is a slot for it. Without `profile` the session's counts.
    """
    # Spark 3.5's frames take no profile, those of Spark 3.4 no barrier.
    more: dict[str, Any] = {} if profile is None else {"profile": profile}
    with warnings.catch_warnings():
        # PySpark warns at each call about versions of pandas.
        warnings.filterwarnings("ignore", message=".*PySpark does not yet fully support pandas")
        if not barrier:
            return frame.mapInArrow(task, schema, **more)
        if "barrier" not in inspect.signature(DataFrame.mapInArrow).parameters:  # Spark 3.4
            return _BarrierRdd(frame.mapInArrow(task, schema))
        return frame.mapInArrow(task, schema, barrier=True, **more)


def profile_of(spark: SparkSession) -> ResourceProfile | None:
    """Return the profile of a job's stage; None where the session's own is right.

    It asks for tasks' resources only, so that the stage runs on the executors that there are, whose memory is theirs.
    Under dynamic allocation Spark starts others for it, like those of the session.

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
    asked = TaskResourceRequests().cpus(int(conf.get_number("spark.task.cpus") or 1))
    gpus = get_gpus_per_rank(conf)
    builder = ResourceProfileBuilder()
    if gpus:
        asked = asked.resource("gpu", gpus)
        if has_dynamic_allocation(conf):
            builder = builder.require(_executors(conf))
    profile = builder.require(asked).build
    assert isinstance(profile, ResourceProfile)
    return profile


def _executors(conf: Configuration) -> ExecutorResourceRequests:
    """Return the session's executors, which a profile does not take over: their GPUs, and their cores if set."""
    asked = ExecutorResourceRequests()
    cores = get_executor_cores(conf)
    if cores:
        asked = asked.cores(cores)
    script, vendor = (conf.get(f"spark.executor.resource.gpu.{name}") or "" for name in ("discoveryScript", "vendor"))
    return asked.resource("gpu", int(conf.get_number(GPUS_PER_EXECUTOR) or 1), script, vendor)
