"""Horovod's API for PyTorch: ``import spark_estimator.torch as hvd``.

A *rank* is one of the processes that train together. A *collective* is an operation that all ranks take part in; it
runs when each of them has called it. Start ranks with ``HorovodRunner`` or ``horovodrun``; a process without a
launcher is a job of one. Tensors of any device are accepted; those that are not in host memory are copied through it.
"""

# the check must precede imports that would fail without PyTorch
from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "spark_estimator.torch (horovod.torch) needs PyTorch, which is not installed: pip install torch", name="torch"
    )

from spark_estimator.collectives import context as _context
from spark_estimator.collectives.context import *  # noqa: F403  the functions that are alike in all frameworks
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch import elastic as elastic
from spark_estimator.torch.collectives.differentiable import allgather, allreduce, alltoall, broadcast, reducescatter
from spark_estimator.torch.collectives.differentiable_groups import (
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
)
from spark_estimator.torch.collectives.grouped import (
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
)
from spark_estimator.torch.collectives.ops import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    join,
    reducescatter_async,
    sparse_allreduce_async,
)
from spark_estimator.torch.collectives.pending import poll, synchronize
from spark_estimator.torch.collectives.reductions import Adasum, Average, Max, Min, Product, Sum
from spark_estimator.torch.compression.choices import Compression
from spark_estimator.torch.optimizer.optimizer import DistributedOptimizer
from spark_estimator.torch.profiling import start_recorder
from spark_estimator.torch.starting_state import broadcast_optimizer_state, broadcast_parameters
from spark_estimator.torch.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from spark_estimator.extensions.local_steps import DiLoCo, LocalSGD

__all__ = [
    *_context.__all__,
    "Adasum",
    "Average",
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalSGD",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

_context.call_at_init(start_recorder)

#: Submodules that Horovod binds as it is imported. They load at their first use.
_SUBMODULES = ("functions", "mpi_ops")

_HOME = {"DiLoCo": "spark_estimator.extensions.local_steps", "LocalSGD": "spark_estimator.extensions.local_steps"}


def __getattr__(name: str) -> Any:
    """Load a public name of an extension, or a submodule, at its first use (PEP 562)."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})


def _check_has_gpu() -> bool:
    """Return whether PyTorch sees a GPU. Horovod's name, which ``horovod.common.util.gpu_available`` calls there."""
    import torch

    return torch.cuda.is_available()
