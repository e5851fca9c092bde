"""The steps of ``training_rank`` in Lightning: without communication, with this package's strategy, and with DDP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

import spark_estimator.lightning  # noqa: F401  for strategy="horovod"
import spark_estimator.torch as hvd
from benchmarks.training_rank import MODELS

#: Variant -> the Trainer's strategy.
STRATEGIES = {"lightning_none": "auto", "lightning_ours": "horovod", "lightning_ddp": "ddp"}


class Module(lightning.LightningModule):
    """One of `MODELS`, with its training step and optimizer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = MODELS[name].make()
        self._learning_rate = MODELS[name].learning_rate
        self._loss = MODELS[name].loss

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """The loss of one batch."""
        return self._loss(self.model(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD([value for value in self.parameters() if value.requires_grad], lr=self._learning_rate)


class LightningTraining:
    """A model trained with one variant. A block of steps is a call of ``fit``, whose setup is not timed."""

    def __init__(self, variant: str, name: str) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self._variant = variant
        self._module = Module(name)

    @property
    def model(self) -> torch.nn.Module:
        """The model that is trained."""
        return self._module.model

    def steps(self, batches: list[torch.Tensor], *, timed: bool = True) -> list[int]:
        """Takes a step with each batch; returns the nanoseconds of each, from a batch to the request for the next one.

        If `timed`, takes one more step, because the request for its batch ends the timing of the last step.
        """
        loader = _Timed([*batches, batches[-1]] if timed else batches)
        strategy: Any = STRATEGIES[self._variant]
        trainer = lightning.Trainer(
            strategy=DDPStrategy(cluster_environment=_Ranks()) if strategy == "ddp" else strategy,
            accelerator="cpu",
            devices=hvd.size() if strategy == "ddp" else 1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(self._module, loader)
        return loader.times


class _Timed:
    """Yields each batch when all ranks have requested theirs; times the interval until the next request."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self._batches = batches
        self.times: list[int] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self._batches:
            hvd.barrier()
            start = time.perf_counter_ns()
            yield batch
            self.times.append(time.perf_counter_ns() - start)


class _Ranks(LightningEnvironment):
    """The ranks of this job, for DDP. Their gloo process group already exists."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return hvd.size()

    def global_rank(self) -> int:
        return hvd.rank()

    def local_rank(self) -> int:
        return hvd.local_rank()
