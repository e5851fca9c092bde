"""The optimizers with the positional arguments of ``horovod.keras``; `optimizer` has those of ``tensorflow.keras``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.keras import optimizer as of_keras


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Has a Keras optimizer average gradients over all ranks; see `optimizer.DistributedOptimizer`."""
    return of_keras.DistributedOptimizer(**locals())  # the same names, in another order


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Wrap as `DistributedOptimizer` does, with layers whose variables are of this rank only; see there."""
    return of_keras.PartialDistributedOptimizer(**locals())  # the same names, in another order
