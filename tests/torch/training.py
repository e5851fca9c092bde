"""A small training that the optimizer's tests share: model, batches, and the same on one process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd

BATCH = 4
STEPS = 20


def model_of(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(steps: int = STEPS, size: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size * BATCH, 6, generator=generator), torch.randn(size * BATCH, 3, generator=generator))
        for _ in range(steps)
    ]


def own_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[hvd.rank() * BATCH : (hvd.rank() + 1) * BATCH]


def digest(tensors: Iterable[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def assert_same_on_all_ranks(model: nn.Module) -> None:
    assert len(set(hvd.allgather_object(digest(model.parameters())))) == 1


def init_with_buckets_of(size: int) -> None:
    """Joins again with buckets so small that a small model has many."""
    hvd.shutdown()
    os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"] = str(size)
    hvd.init()
    del os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"]


def trained_alone(
    make: Callable[[Any], torch.optim.Optimizer], after_backward: Callable[[nn.Module], object] = lambda model: None
) -> nn.Module:
    model = model_of()
    optimizer = make(model.parameters())
    for inputs, targets in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        after_backward(model)
        optimizer.step()
    return model


def assert_close(model: nn.Module, reference: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
}


class Branches(nn.Module):
    """Uses `left`, `right` or both, and never `idle`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.left, self.right, self.idle = (nn.Linear(4, 2) for _ in range(3))

    def forward(self, inputs: torch.Tensor, use: str) -> torch.Tensor:
        parts = {"left": self.left, "right": self.right}
        return sum(part(inputs).sum() for name, part in parts.items() if name in use)  # type: ignore[return-value]
