"""NCCL as ``torch.distributed`` calls it, in the present ranks: the peer of the engine's NCCL backend."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import spark_estimator.torch as hvd

_PATIENCE = timedelta(seconds=30)


@contextlib.contextmanager
def averaging_by_nccl(backend: str = "nccl") -> Iterator[Callable[[torch.Tensor], object]]:
    """In this context, what averages a tensor over all ranks in place, as `hvd.allreduce_` does. Collective.

    Raises:
        RuntimeError: this PyTorch has no NCCL.
    """
    if not (dist.is_available() and (backend != "nccl" or dist.is_nccl_available())):
        raise RuntimeError("this PyTorch has no NCCL")
    folder = hvd.broadcast_object(tempfile.mkdtemp(prefix="nccl") if hvd.rank() == 0 else "", 0)
    try:
        store = dist.FileStore(str(Path(folder, "store")), hvd.size())  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=_PATIENCE)
        try:
            yield lambda tensor: dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        finally:
            dist.destroy_process_group()
    finally:
        hvd.barrier()  # others may still be reading in it
        if hvd.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
