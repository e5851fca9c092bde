"""The checkpoint of Lightning in a form that is read without running code."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

from spark_estimator.estimators.lightning.checkpoint import (
    begin_after,
    live_checkpoint,
    loop_states,
    plain_checkpoint,
    progress_of,
    set_progress,
)
from spark_estimator.estimators.torch.checkpoint import packed

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
    return pl.Trainer(accelerator="cpu", logger=False, max_epochs=epochs, **OFF, **arguments)


@pytest.mark.filterwarnings("ignore")
def test_objects_are_left_out_and_epochs_are_counted() -> None:
    rows: Any = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)  # type: ignore[arg-type]
    trainer = trainer_of(1, callbacks=[Keeps(3), Keeps(Path("/"))])
    trainer.fit(Module(), rows)
    content = plain_checkpoint(trainer)
    again = torch.load(io.BytesIO(packed(content)), weights_only=True)
    assert set(again["callbacks"]) == {"Keepsint"} and "hyper_parameters" not in again
    assert "net.weight" in again["state_dict"] and len(again["optimizer_states"]) == 1
    other = trainer_of(3)
    begin_after(other, again)
    assert other.current_epoch == 1 and not other.fit_loop.restarting


@pytest.mark.filterwarnings("ignore")
def test_progress_is_that_of_lightning() -> None:
    rows: Any = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)  # type: ignore[arg-type]
    trainer = trainer_of(2)
    trainer.fit(Module(), rows)
    assert loop_states(progress_of(trainer)) == trainer.fit_loop.state_dict()
    other = trainer_of(2)
    set_progress(other, loop_states(progress_of(trainer)))
    assert other.fit_loop.state_dict() == trainer.fit_loop.state_dict()
    assert (other.current_epoch, other.global_step) == (2, 4) and not other.fit_loop.restarting


class Unpicklable(Keeps):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": lambda: 1}


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_cannot_be_pickled_is_named(caplog: Any) -> None:
    rows: Any = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)  # type: ignore[arg-type]
    trainer = trainer_of(1, callbacks=[Keeps(Path("/")), Unpicklable(3)])
    trainer.fit(Module(), rows)
    trainer.strategy.is_apart = False  # an attribute of the strategy "horovod"
    with caplog.at_level("WARNING"):
        content = live_checkpoint(trainer)
    assert "the state of the callback Keepsint cannot be pickled" in caplog.text
    assert any("Posix" in key for key in content["callbacks"]) and "Keepsint" not in content["callbacks"]
