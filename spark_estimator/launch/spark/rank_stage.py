"""Makes the DataFrame whose rows come from tasks that start together, also on Spark 3.4."""

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


def barrier_stage(
    frame: DataFrame,
    task: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]],
    schema: str,
    profile: ResourceProfile | None = None,
) -> Any:
    """What runs `task` in one barrier task for each partition of `frame`, once its ``collect`` is called.

    Args:
        profile: of the stage; None: the session's.
    """
    with warnings.catch_warnings():
        # PySpark tells at each call which pandas it would rather have.
        warnings.filterwarnings("ignore", message=".*PySpark does not yet fully support pandas")
        if "barrier" not in inspect.signature(DataFrame.mapInArrow).parameters:  # Spark 3.4
            return _BarrierRdd(frame.mapInArrow(task, schema))
        # Spark 3.5's frames take no profile.
        more = {} if profile is None else {"profile": profile}
        return frame.mapInArrow(task, schema, barrier=True, **more)
