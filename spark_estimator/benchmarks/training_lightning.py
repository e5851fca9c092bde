"""The steps of ``training_rank`` as Lightning takes them: alone, with our strategy, with its own DDP over gloo."""

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
from spark_estimator.benchmarks.training_rank import MODELS, loss_of

#: Variant -> the Trainer's strategy.
STRATEGIES = {"lightning_none": "auto", "lightning_ours": "horovod", "lightning_ddp": "ddp"}


class Module(lightning.LightningModule):
    """One of `MODELS`, and how it is trained."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = MODELS[name].make()
        self._learning_rate = MODELS[name].learning_rate

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """The loss of one batch."""
        return loss_of(self.model(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self._learning_rate)


class LightningTraining:
    """One model under one variant. A block of steps is a call of ``fit``, whose setting up is not timed."""

    def __init__(self, variant: str, name: str) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self._variant = variant
        self._module = Module(name)

    @property
    def model(self) -> torch.nn.Module:
        """What is trained."""
        return self._module.model

    def steps(self, batches: list[torch.Tensor], *, and_no_more: bool = False) -> list[int]:
        """Takes a step with each batch; nanoseconds of each, from having it to the asking for the next one.

        That ends the last step, too: one more is taken, unless `and_no_more` says that times are not wanted.
        """
        loader = _Timed(batches if and_no_more else [*batches, batches[-1]])
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
    """Batches, each given when all ranks want theirs; what happens until the next one is asked for is timed."""

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
    """Our ranks, for DDP. They have met over gloo already."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return hvd.size()

    def global_rank(self) -> int:
        return hvd.rank()

    def local_rank(self) -> int:
        return hvd.local_rank()
