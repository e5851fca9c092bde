"""A Lightning estimator's training that continues on fewer ranks, and grows again: each row once in an epoch."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from spark_estimator.elastic.rounds import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.estimators.lightning.test_recovery import Killing, Kills
from tests.estimators.lightning.test_training import ROWS, folder, numbers_of, trained

__all__ = ["folder"]

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

EPOCHS = 2
RATE = 2.0**-10


def module(killing: Killing) -> Any:
    """Its loss is the mean of the labels, with a gradient of 1 of its only parameter. It logs in all ways."""
    import lightning.pytorch as pl
    import torchmetrics

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(()))
            self.mean = torchmetrics.MeanMetric()
            self.extremes = torchmetrics.MaxMetric()
            self.labels = torchmetrics.CatMetric()
            self.last: list[float] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            killing("training_step")
            labels = batch["y"].reshape(-1)
            self.last = labels.tolist()
            self.mean.update(labels)
            self.extremes.update(labels)
            self.labels.update(labels)
            self.log("of_metric", self.mean, on_step=False, on_epoch=True)
            of_all = {"on_step": False, "on_epoch": True, "sync_dist": True}
            self.log("of_rows", labels.mean(), batch_size=len(labels), **of_all)
            self.log("rows", float(len(labels)), reduce_fx="sum", **of_all)
            self.log("largest", labels.max(), reduce_fx="max", **of_all)
            self.log("own", 1.0, on_step=False, on_epoch=True, batch_size=len(labels))
            return labels.mean() + self.bias - self.bias.detach()

        def validation_step(self, batch: Any, number: int) -> None:
            killing("validation_step")
            self.log("held", 1.0, reduce_fx="sum", sync_dist=True, on_epoch=True)

        def on_train_epoch_end(self) -> None:
            self.log("largest_of_metric", self.extremes.compute())
            self.log("sum_of_labels", torch.as_tensor(self.labels.compute()).sum())
            self.extremes.reset()
            self.labels.reset()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
            constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": constant, "interval": "step"}}

    return Learner()


def recorded(folder: str, marks: str, kills: Kills, step_seconds: float = 0, **changed: Any) -> Any:
    """History and bias. Each process writes to a file the labels of each committed step, and how many of them count."""
    import time

    from spark_estimator.estimators.lightning import recovery

    torch.set_num_threads(1)
    commit = recovery.LightningCommits.step

    def step(self: Any, trainer: Any, *, renew: bool) -> None:
        line = {"labels": trainer.lightning_module.last, "counted": self._content._watch.counted}
        with Path(marks, f"labels-{os.getpid()}").open("a") as file:
            file.write(json.dumps({**line, "epoch": trainer.current_epoch}) + "\n")
        time.sleep(step_seconds)
        commit(self, trainer, renew=renew)

    recovery.LightningCommits.step = step  # type: ignore[method-assign]
    settings = {"epochs": EPOCHS, "batch_size": 8, "backward_passes_per_step": 1, "restore_best": False, **changed}
    result = trained(folder, module(Killing(marks, kills)), settings)
    return None if result is None else (result.history, float(numbers_of(result)["bias"]))


def check(marks: Path, results: list[Any], held_share: float) -> None:
    steps = [json.loads(line) for file in marks.glob("labels-*") for line in file.read_text().splitlines()]
    labels = Counter(label for step in steps for label in step["labels"][: step["counted"]])
    assert set(labels.values()) == {EPOCHS}, Counter(labels.values())
    assert len(labels) == ROWS - round(ROWS * held_share)
    history, bias = next(result for result in results if result is not None)
    mean = float(numpy.mean(list(labels)))
    assert [entry["train"]["loss"] for entry in history] == pytest.approx([mean] * EPOCHS, rel=1e-5)
    # Each step changes the bias by the rate times the number of ranks, each of which has a line of the step.
    assert bias == pytest.approx(-RATE * len(steps), rel=1e-4)
    for epoch, entry in enumerate(history):  # a row that does not count fills a rank's empty batch, and is logged
        seen = [label for step in steps if step["epoch"] == epoch for label in step["labels"]]
        logged = entry["logged"]
        assert logged["rows"] == len(seen)
        assert [logged["of_rows"], logged["of_metric"]] == pytest.approx([numpy.mean(seen)] * 2, rel=1e-4)
        assert [logged["largest"], logged["largest_of_metric"]] == pytest.approx([max(seen)] * 2)
        assert logged["sum_of_labels"] == pytest.approx(sum(seen), rel=1e-4)
        assert logged["own"] == 1


@pytest.mark.parametrize(
    ("kills", "held_share"),
    [
        ([(1, "training_step", 3)], 0.0),
        ([(0, "training_step", 3), (0, "training_step", 6)], 0.25),
        ([(2, "validation_step", 1)], 0.25),
    ],
)
def test_without_a_replacement_the_others_have_the_rest_of_the_epoch(
    kills: Kills, held_share: float, folder: Path, tmp_path: Path
) -> None:
    terms = Terms(3, 1, reset_limit=4, timeout=timedelta(seconds=90), patience=timedelta(0))
    options = JobOptions(args=(str(folder), str(tmp_path), kills), kwargs={"held_share": held_share})
    results = run_elastic_local(recorded, terms, options)
    assert len(results) == 3 - len(kills) == 3 - len(list(tmp_path.glob("killed-*")))
    check(tmp_path, results, held_share)


def test_a_process_that_comes_later_has_its_part_of_the_epoch(folder: Path, tmp_path: Path) -> None:
    terms = Terms(3, 1, replace=True, reset_limit=4, timeout=timedelta(seconds=90), patience=timedelta(0))
    changed = {"step_seconds": 2, "held_share": 0.25}
    options = JobOptions(args=(str(folder), str(tmp_path), [(0, "training_step", 3)]), kwargs=changed)
    results = run_elastic_local(recorded, terms, options)
    assert len(results) == 3, "it has grown again"
    check(tmp_path, results, 0.25)
