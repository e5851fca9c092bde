"""Runs of Lightning's estimator that are interrupted within an epoch: what a checkpoint there must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")
pytest.importorskip("pyspark")

import numpy
import pyarrow.parquet
import torch
from torch import nn

from spark_estimator.lightning import TorchEstimator
from spark_estimator.store import Store
from tests.estimators.histories import drop_times
from tests.estimators.lightning.test_training import linear, numbers_of, trained, write_rows
from tests.ranks import run_ranks


def compare_continued_runs(rank: int, folder: str) -> list[str]:
    """Return the names of modules whose continued run differs from an undisturbed one, in its history or weights."""
    import lightning.pytorch as pl
    import torchmetrics

    class Learner(pl.LightningModule):
        fails = False

        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def compute(self, batch: Any, number: int) -> torch.Tensor:
            if self.fails and (self.current_epoch, number) == (1, 5):
                raise InterruptedError
            return nn.functional.mse_loss(self.net(batch["x"]).reshape(-1), batch["y"])

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.compute(batch, number)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    class LogsEarly(Learner):
        """Logs in the epoch's first hook and batches only, which come before the checkpoint."""

        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()

        def on_train_epoch_start(self) -> None:
            self.log("epoch", float(self.current_epoch))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = self.compute(batch, number)
            if number < 2:
                self.mean.update(loss.detach())
                self.log("first", loss, on_step=True, on_epoch=True, batch_size=4)
                self.log("largest", loss, on_epoch=True, reduce_fx="max")
                self.log("mean", self.mean, on_epoch=True)
            return loss

    class StepsByHand(Learner):
        """Adds up the gradients of four batches: a checkpoint after the third would lose them."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = self.compute(batch, number)
            self.manual_backward(loss)
            if (number + 1) % 4 == 0:
                optimizer = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

    different = []
    for kind in (LogsEarly, StepsByHand):

        def run(run_id: str, kind: type[Learner] = kind) -> Any:
            settings = {"epochs": 3, "store": Store.create(f"{folder}/store"), "checkpoint_steps": 3}
            return trained(folder, kind(), {**settings, "run_id": f"{kind.__name__}-{run_id}"})

        whole = run("whole")
        kind.fails = True
        with pytest.raises(InterruptedError):
            run("continued")
        kind.fails = False
        continued = run("continued")
        weights, expected = numbers_of(continued), numbers_of(whole)
        equal = all(torch.equal(weights[name], expected[name]) for name in expected)
        if drop_times(continued.history) != drop_times(whole.history) or not equal:
            different.append(f"{kind.__name__}: {whole.history} {continued.history}")
    return different


def test_a_continued_epoch_has_all_that_it_had(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert run_ranks(1, compare_continued_runs, 200, args=(str(tmp_path),)) == [[]]


def follow_rates_of_an_epoch_that_begins_again(rank: int, folder: str) -> list[Any]:
    """Return the rates and betas of an undisturbed run, those from the beginning again, and those before it."""
    import lightning.pytorch as pl

    class Learner(pl.LightningModule):
        fails_at: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if (self.current_epoch, number) == self.fails_at:
                raise InterruptedError
            (group,) = self.trainer.optimizers[0].param_groups
            seen.append((self.current_epoch, number, group["lr"], group["betas"][0]))
            return nn.functional.mse_loss(self.net(batch["x"]).reshape(-1), batch["y"])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            rising = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rising, "interval": "step"}}

    def run(run_id: str, fails_at: Any = None, **changed: Any) -> list[Any]:
        seen.clear()
        Learner.fails_at = fails_at
        settings = {"epochs": 3, "store": Store.create(f"{folder}/store"), "checkpoint_steps": 3, "run_id": run_id}
        if fails_at is None:
            trained(folder, Learner(), {**settings, **changed})
        else:
            with pytest.raises(InterruptedError):
                trained(folder, Learner(), {**settings, **changed})
        return list(seen)

    seen: list[Any] = []
    whole = run("whole")
    run("again", (1, 5))
    run("again", (1, 8))  # it continues after the third batch, and has another checkpoint
    return [whole, run("again", rows="others", resume_on_other_rows=True)]


def test_rates_begin_again_with_their_epoch(tmp_path: Path) -> None:
    write_rows(tmp_path)
    rows = pyarrow.parquet.read_table(tmp_path / "rows.parquet").slice(0, 150)
    pyarrow.parquet.write_table(rows, tmp_path / "others.parquet")
    ((whole, again),) = run_ranks(1, follow_rates_of_an_epoch_that_begins_again, 200, args=(str(tmp_path),))
    first = next(place for place, each in enumerate(whole) if each[0] == 1)
    steps = sum(each[0] == 1 for each in again)
    assert again[0][:2] == (1, 0) and 3 < steps < sum(each[0] == 1 for each in whole)
    rates = [[each[2:] for each in part] for part in (again[:steps], whole[first : first + steps])]
    numpy.testing.assert_allclose(*rates, rtol=1e-6)


def test_what_cannot_be_continued_is_refused() -> None:
    import lightning.pytorch as pl

    class Learner(pl.LightningModule):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return torch.zeros(())

    averaging = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1)
    for changed, text in (
        ({"callbacks": [averaging]}, "checkpoint_every_steps: StochasticWeightAveraging keeps an average"),
        ({"sync": "diloco"}, "checkpoint_every_steps: with sync='diloco' each checkpoint would exchange"),
    ):
        estimator = TorchEstimator(
            model=Learner(), feature_cols=["x"], label_cols=["y"], checkpoint_every_steps=3, **changed
        )
        with pytest.raises(ValueError, match=text):
            estimator._make_training()
