"""What old scripts import from ``horovod.tensorflow.mpi_ops``: the collectives, and some names that it kept."""

from __future__ import annotations

from typing import Any

import spark_estimator.tensorflow as _basics  # Horovod's name for the job's questions
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Sum, reduce_op
from spark_estimator.tensorflow import *  # noqa: F403  all public names, under the module's old name
from spark_estimator.tensorflow.graph_modes import _executing_eagerly as _executing_eagerly


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation that `op` and the deprecated `average` select.

    Raises:
        ValueError: both are set, or `op` is none of the constants.
    """
    return reduce_op(average, op)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce as Horovod's inner `allreduce`, which layers of other packages call: a sum where no `op` is named."""
    return _basics.allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
