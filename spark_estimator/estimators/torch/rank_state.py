"""The state that differs between the ranks of a training: a checkpoint has buffers, sums and generators of each rank.

Parameters and the optimizer's state are the same on all ranks. Where ranks step alone, inner optimizers differ, but
all resume with rank 0's state. Buffers differ: each rank's batch normalization counts its own rows, and validation uses
them.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.checkpoint.random_state import get_random_state, set_random_state


def gather_rank_states(
    model: nn.Module, device: torch.device, sums: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return [ranks] what each has. A collective.

    Args:
        device: on which it trains.
        sums: `EpochMeans.get_state` of the epoch so far; None: there is no epoch that has begun.
    """
    state: dict[str, Any] = {"buffers": _find_other_buffers(model)}
    if sums is not None:
        state |= sums | get_rng_state(device)
    return list(hvd.allgather_object(state, name="what each rank has"))


def take_buffers(model: nn.Module, state: dict[str, Any]) -> None:
    """Give a model, which has rank 0's buffers, its own."""
    buffers = dict(model.named_buffers())
    for name, value in state["buffers"].items():
        buffers[name].copy_(value)


def seed_generators(seed: int, epoch: int) -> None:
    """Seed PyTorch's, Python's and NumPy's generators for an epoch of this rank; earlier draws have no effect.

    Args:
        epoch: from 0; -1: what comes before the first.
    """
    _seed((seed * 100_003 + epoch) * 10_007 + hvd.rank())


def seed_start(seed: int) -> None:
    """Seed the generators alike on all ranks, for what they make before the first epoch."""
    _seed(seed)


def _seed(number: int) -> None:
    number %= 1 << 63
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed([number & 0xFFFFFFFF, number >> 32])


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Return PyTorch's, Python's and NumPy's generators in this rank, for `set_rng_state`."""
    state: dict[str, Any] = {"generators": get_random_state()}
    if device.type == "cuda":
        state["random of the GPU"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(device: torch.device, state: dict[str, Any]) -> None:
    """Restore the random number generators of this rank."""
    set_random_state(state["generators"])
    if device.type == "cuda" and "random of the GPU" in state:
        torch.cuda.set_rng_state(state["random of the GPU"], device)


def _find_other_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers in which this rank differs from rank 0, whose are in the model's state. A collective."""
    saved = model.state_dict().keys()
    buffers = {name: value.detach().cpu() for name, value in model.named_buffers() if name in saved}
    if not buffers:
        return {}
    digests = {name: _compute_digest(value) for name, value in buffers.items()}
    first = hvd.broadcast_object(digests, root_rank=0, name="buffers of rank 0")
    return {name: value for name, value in buffers.items() if digests[name] != first[name]}


def _compute_digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
