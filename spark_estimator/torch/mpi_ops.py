"""Names that old scripts import from ``horovod.torch.mpi_ops``: the collectives, and some others of Horovod's."""

from __future__ import annotations

import spark_estimator.torch as _basics
from spark_estimator.compat.build_questions import gpu_available, num_rank_is_power_2
from spark_estimator.torch import *  # noqa: F403  all public names, under the module's old name
from spark_estimator.torch.collectives.differentiable import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodReducescatter,
)
from spark_estimator.torch.collectives.differentiable_groups import (
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
)
from spark_estimator.torch.collectives.reductions import reduce_op

__all__ = [
    *_basics.__all__,
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "_basics",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the one operation that both arguments ask for together.

    Raises:
        ValueError: both are set, or `op` is none of the constants.
    """
    return reduce_op(average, op)
