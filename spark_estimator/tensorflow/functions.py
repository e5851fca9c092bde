"""What scripts import from ``horovod.tensorflow.functions``: starting states and objects for all ranks."""

from __future__ import annotations

from spark_estimator.collectives.context import rank, size
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.tensorflow.gathering import allgather, broadcast
from spark_estimator.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from spark_estimator.tensorflow.starting_state import broadcast_, broadcast_variables

__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "global_process_set",
    "rank",
    "size",
]
