"""Makes the DataFrame whose rows come from the tasks of a job's ranks: a barrier stage, also on Spark 3.4, or none."""

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
        """Its rows. Already to make the RDD runs the stages before the last."""
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
    """What runs `task` in one task for each partition of `frame`, once its ``collect`` is called.

    Args:
        barrier: whether all tasks start together; else each starts once there is a slot for it.
        profile: of the stage; None: the session's.
    """
    # Spark 3.5's frames take no profile, those of Spark 3.4 no barrier.
    more: dict[str, Any] = {} if profile is None else {"profile": profile}
    with warnings.catch_warnings():
        # PySpark tells at each call which pandas it would rather have.
        warnings.filterwarnings("ignore", message=".*PySpark does not yet fully support pandas")
        if not barrier:
            return frame.mapInArrow(task, schema, **more)
        if "barrier" not in inspect.signature(DataFrame.mapInArrow).parameters:  # Spark 3.4
            return _BarrierRdd(frame.mapInArrow(task, schema))
        return frame.mapInArrow(task, schema, barrier=True, **more)
