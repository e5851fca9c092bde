"""Horovod's API for TensorFlow: ``import spark_estimator.tensorflow as hvd``.

A *rank* is one of the processes that train together. A *collective* is an operation that all ranks take part in; it
runs when each of them has called it. Start ranks with ``HorovodRunner`` or ``horovodrun``; a process without a
launcher is a job of one. Collectives work eagerly, in a ``tf.function`` and in graphs of TensorFlow 1.
"""

# the check must precede imports that would fail without TensorFlow
from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("tensorflow") is None:
    raise ModuleNotFoundError(
        "spark_estimator.tensorflow (horovod.tensorflow) needs TensorFlow, which is not installed: pip install "
        "tensorflow (tensorflow-cpu for hosts without a GPU)",
        name="tensorflow",
    )

from spark_estimator.collectives import context as _context
from spark_estimator.collectives.context import *  # noqa: F403  the functions that are alike in all frameworks
from spark_estimator.collectives.ops import barrier as _barrier
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Adasum, Average, Max, Min, Product, Sum
from spark_estimator.errors import HorovodInternalError, NativeLibraryError
from spark_estimator.tensorflow import elastic as elastic
from spark_estimator.tensorflow import works as _works
from spark_estimator.tensorflow.compression import Compression
from spark_estimator.tensorflow.gathering import allgather, alltoall, broadcast, grouped_allgather
from spark_estimator.tensorflow.graph_modes import _cache as _cache
from spark_estimator.tensorflow.graph_modes import _executing_eagerly as _executing_eagerly
from spark_estimator.tensorflow.graph_modes import _make_subgraph as _make_subgraph
from spark_estimator.tensorflow.graph_modes import refs_to_vars, vars_to_refs
from spark_estimator.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from spark_estimator.tensorflow.optimizer import DistributedOptimizer
from spark_estimator.tensorflow.questions import (
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from spark_estimator.tensorflow.reducing import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from spark_estimator.tensorflow.starting_state import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)
from spark_estimator.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

if TYPE_CHECKING:
    from spark_estimator.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    *_context.__all__,
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "size_op",
    "vars_to_refs",
]


# At import, so that saved graphs with collectives can be loaded. If this fails, building a graph raises the error.
with contextlib.suppress(NativeLibraryError):
    _works.register()


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Return when every rank of the set is in it. Raise HorovodInternalError when one is lost."""
    _barrier(process_set)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether Adasum works with this number of ranks."""
    return num_rank > 0 and not num_rank & (num_rank - 1)


#: Submodules that Horovod binds as it is imported -> the modules here. They load at their first use.
_SUBMODULES = {
    "functions": "functions",
    "mpi_ops": "mpi_ops",
    "sync_batch_norm": "sync_batch_norm",
    "util": "graph_modes",
    "gradient_aggregation": "aggregation",
    "gradient_aggregation_eager": "aggregation",
}


def __getattr__(name: str) -> Any:
    # Keras takes a second to load, and few need this.
    if name == "SyncBatchNormalization":
        from spark_estimator.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "handle_average_backwards_compatibility":
        return importlib.import_module(f"{__name__}.mpi_ops").handle_average_backwards_compatibility
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{_SUBMODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


def _check_has_gpu() -> bool:
    """Return whether TensorFlow sees a GPU. Horovod's name."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
