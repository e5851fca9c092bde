"""Names that scripts import from ``horovod.torch.functions``: starting states and objects for all ranks."""

from __future__ import annotations

from spark_estimator.collectives.context import rank, size
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.torch.collectives.differentiable import allgather
from spark_estimator.torch.collectives.ops import broadcast_, broadcast_async_
from spark_estimator.torch.collectives.pending import synchronize
from spark_estimator.torch.starting_state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast_",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "rank",
    "size",
    "synchronize",
]
