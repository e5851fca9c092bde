"""The checkpoint of Lightning in a form that is read without running code."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

import spark_estimator.torch as hvd
from spark_estimator.estimators.lightning.callbacks import EpochSums, make_strategy
from spark_estimator.estimators.lightning.checkpoint import CheckpointWriter, begin_after, make_plain_checkpoint
from spark_estimator.estimators.torch.checkpoint import pack
from tests.estimators.lightning.no_hooks import NoHooks

OFF = {f"enable_{name}": False for name in ("checkpointing", "progress_bar", "model_summary")}


class Keeps(pl.Callback):  # type: ignore[misc]
    def __init__(self, state: Any) -> None:
        self.kept = state

    @property
    def state_key(self) -> str:
        return f"Keeps{type(self.kept).__name__}"

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"any": Path("/")})
        self.net = nn.Linear(1, 1)

    def training_step(self, batch: Any) -> Any:
        return self.net(batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer_of(epochs: int, **arguments: Any) -> Any:
    sums = EpochSums(None, None, 0, NoHooks())
    strategy = make_strategy("lightning.pytorch", sums, 0)
    return pl.Trainer(accelerator="cpu", logger=False, max_epochs=epochs, strategy=strategy, **OFF, **arguments)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("limits", [{}, {"max_steps": 100}])
def test_objects_are_left_out_and_epochs_are_counted(limits: dict[str, Any]) -> None:
    rows: Any = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)  # type: ignore[arg-type]
    trainer = trainer_of(1, callbacks=[Keeps(3), Keeps(Path("/"))])
    trainer.fit(Module(), rows)
    content = make_plain_checkpoint(trainer, tells=False)
    assert trainer.strategy.in_memory is None
    again = torch.load(io.BytesIO(pack(content)), weights_only=True)
    assert set(again["callbacks"]) == {"Keepsint"} and "hyper_parameters" not in again
    assert "net.weight" in again["state_dict"] and len(again["optimizer_states"]) == 1
    other = trainer_of(3, **limits)
    begin_after(other, again, within=False)
    assert (other.current_epoch, other.global_step) == (1, 2) and not other.fit_loop.restarting


@pytest.mark.filterwarnings("ignore")
def test_an_epoch_that_is_half_done_continues_or_begins_again() -> None:
    rows: Any = torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2)  # type: ignore[arg-type]

    class Taking(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, output: Any, batch: Any, number: int) -> None:
            if number == 1:
                self.content = make_plain_checkpoint(trainer, tells=False)

    taking = Taking()
    trainer_of(1, callbacks=[taking]).fit(Module(), rows)
    for within in (True, False):
        other = trainer_of(2)
        begin_after(other, taking.content, within=within)
        assert other.fit_loop.restarting is within and other.current_epoch == 0
        counts = other.fit_loop.epoch_progress.total
        assert (counts.ready, counts.processed) == (int(within), 0)


@pytest.mark.parametrize(
    ("by_hand", "batches", "due"),
    [
        # (validations, optimizer steps) after each batch; two batches are one step
        (False, [(0, 0), (0, 1), (0, 1), (0, 2)], [False, False, False, True]),
        (False, [(0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 3)], [False, False, False, False, False, True]),
        (True, [(0, 0), (0, 0), (0, 1), (0, 1)], [False, False, True, False]),
    ],
)
def test_a_checkpoint_that_is_due_waits_for_a_step_and_not_for_a_validation(
    by_hand: bool, batches: list[tuple[int, int]], due: list[bool]
) -> None:
    spec: Any = SimpleNamespace(
        checkpoints_within=True, checkpoint_steps=3, checkpoint_seconds=None, heeds_warnings=False
    )
    beginning: Any = SimpleNamespace(known=None, kept=None)
    writer = CheckpointWriter(spec, beginning, None, [])  # type: ignore[arg-type]
    module = SimpleNamespace(automatic_optimization=not by_hand)
    writer.begin_epoch(0)
    results = []
    for done, (validations, steps) in enumerate(batches, 1):
        trainer = SimpleNamespace(global_step=steps, accumulate_grad_batches=2)
        results.append(writer.is_due(trainer, module, validations, done))
    assert results == due
