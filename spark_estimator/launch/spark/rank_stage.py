"""Makes the DataFrame whose tasks run a job's ranks: in a barrier stage (also on Spark 3.4), or in a plain one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    import pyarrow
    from pyspark.resource import ResourceProfile


@dataclass(frozen=True)
class _BarrierRdd:
    """A DataFrame, the last stage of which becomes a barrier stage."""

    frame: DataFrame

    def collect(self) -> list[Any]:
        """Its rows. Making the RDD already runs the stages before the last."""
        # Still one stage: the rows pass through `iter` in the very tasks that make them.
        return self.frame.rdd.barrier().mapPartitions(iter).collect()


def rank_stage(
    frame: DataFrame,
    task: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]],
    schema: str,
    *,
    barrier: bool,
    profile: ResourceProfile | None = None,
) -> Any:
    """Returns a frame whose ``collect`` runs `task` in one Spark task for each partition of `frame`.

    Args:
        barrier: whether all tasks start together; else each starts once there is a slot for it.
        profile: of the stage; None: the session's.
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
