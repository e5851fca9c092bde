"""A model with parameters of all kinds, its gradients, and the rounding errors that int8 keeps of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd


class Net(nn.Module):
    """Matrices, a convolution, vectors, a scalar, and parameters that are hardly used."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.hidden = nn.Linear(8 * 36, 32)
        self.head = nn.Linear(32, 5)
        self.scale = nn.Parameter(torch.ones(()))
        self.sometimes = nn.Linear(32, 16)
        self.never = nn.Linear(32, 16)
        self.empty = nn.Parameter(torch.ones(0, 7))
        self.to(dtype)

    def forward(self, images: torch.Tensor, sometimes: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.hidden(torch.tanh(self.conv(images)).flatten(1)))
        scores: torch.Tensor = self.head(hidden) * self.scale
        return scores + (self.sometimes(hidden).mean() if sometimes else 0) + self.empty.sum()


def images_of(step: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1000 * step + rank)).to(dtype)


def loss_of(model: nn.Module, step: int, rank: int, **arguments: Any) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    loss: torch.Tensor = model(images_of(step, rank, dtype), **arguments).square().mean()
    return loss


def owed_by(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> torch.Tensor:
    """What this rank owes of a parameter's gradient, in the parameter's shape."""
    known = optimizer._distributed.options.compression.memory._residues.get(param)  # type: ignore[attr-defined]
    if known is None:
        return torch.zeros_like(param, requires_grad=False)
    axes = sorted(range(param.dim()), key=lambda axis: -param.stride(axis))
    shape = [param.shape[axis] for axis in axes]
    return known[1].view(shape).permute([axes.index(axis) for axis in range(len(axes))])


def from_all_ranks(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(hvd.allgather_object(tensor.detach().clone()))


def own_gradients(model: nn.Module, step: int, **arguments: Any) -> dict[str, torch.Tensor | None]:
    """What one process would have: the gradients of this rank, computed on a copy."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss_of(alone, step, hvd.rank(), **arguments).backward()
    return {name: parameter.grad for name, parameter in alone.named_parameters()}
