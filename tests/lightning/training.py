"""A small network, its data, and trainers without files and lines, which the tests of the Lightning binding share."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spark_estimator.lightning  # noqa: F401
import spark_estimator.torch as hvd

BATCH = 4


def package(flavour: str = "lightning.pytorch") -> Any:
    warnings.simplefilter("ignore")
    module = importlib.import_module(flavour)
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return module


def trainer_of(flavour: str = "lightning.pytorch", **arguments: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    common = {"accelerator": "cpu", "strategy": "horovod", "max_epochs": 1, "use_distributed_sampler": True}
    return package(flavour).Trainer(**{**common, **quiet, **arguments})


def network(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def rows(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(count, 6, generator=generator), torch.randn(count, 3, generator=generator))


def loader(count: int = 64, batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(rows(count), batch_size=batch)


class Batches:
    """A number of equal batches, which are not divided among the ranks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter([next(iter(loader()))] * self.count)


def module_of(flavour: str = "lightning.pytorch", **methods: Any) -> Any:
    """A module that learns `rows`; `methods` replace its own. Each rank begins with another network."""

    def __init__(self: Any) -> None:
        super(type(self), self).__init__()
        self.net = network(7 + (hvd.rank() if hvd.is_initialized() else 0))

    def forward(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def training_step(self: Any, batch: Any, number: int) -> torch.Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def configure_optimizers(self: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    members = {
        "__init__": __init__,
        "forward": forward,
        "training_step": training_step,
        "configure_optimizers": configure_optimizers,
    }
    return type("Module", (package(flavour).LightningModule,), {**members, **methods})()


def weights(module: nn.Module) -> list[float]:
    return torch.cat([param.detach().flatten() for param in module.parameters()]).tolist()


def trained_alone(
    steps: list[list[torch.Tensor]], divide_by: int = 1, before_step: Any = lambda params: None, lr: float = 0.01
) -> list[float]:
    """The network after steps on the numbered rows, batch by batch of each step, in one process."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    inputs, targets = rows(64).tensors
    for step in steps:
        optimizer.zero_grad()
        for numbers in step:
            (nn.functional.mse_loss(net(inputs[numbers]), targets[numbers]) / divide_by).backward()
        before_step(list(net.parameters()))
        optimizer.step()
    return weights(net)
