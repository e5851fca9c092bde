"""What old scripts import from ``horovod.tensorflow.mpi_ops``: the collectives, and some names that it kept."""

from __future__ import annotations

import spark_estimator.tensorflow as _basics  # noqa: F401  Horovod's name for the job's questions
from spark_estimator.collectives.reductions import reduce_op
from spark_estimator.tensorflow import *  # noqa: F403  all public names, under the module's old name


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The operation that `op` and the deprecated `average` select.

    Raises:
        ValueError: both are set, or `op` is none of the constants.
    """
    return reduce_op(average, op)
