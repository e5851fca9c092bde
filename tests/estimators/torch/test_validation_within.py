"""Validations within an epoch: they change no step, and the best of them is returned, also by a run that resumes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
import torchmetrics
from torch import nn

from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.store import Store
from tests.estimators.histories import drop_times
from tests.scenarios.estimators.test_torch_resume import ROWS, WIDTH, trained
from tests.torch.rank_pool import RankPool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    created = RankPool(2)
    yield created
    created.close()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    rows = numpy.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(numpy.float32)
    table = pyarrow.table({"x": list(rows), "y": (rows.sum(axis=1) > 0).astype(numpy.float32)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    return str(tmp_path)


def run(folder: str, every: int, **changed: Any) -> Any:
    """The history and the weights of 3 epochs of 11 batches."""
    metrics = {"metrics": [[torchmetrics.classification.BinaryAUROC()]], "metric_names": [["auc"]]}
    parts = {"recipe": StepRecipe(validate_every_steps=every), **metrics}
    keep = {"monitor": "validation.auc", "mode": "max", "verbose": 0, "store": None, "checkpoint_steps": None}
    result = trained(folder, parts=parts, **{**keep, **changed})
    return None if result is None else (json.loads(json.dumps(drop_times(result.history))), result.state)


def test_they_change_no_step(ranks: RankPool, folder: str) -> None:
    def check(rank: int) -> Any:
        return run(folder, 0, restore_best=False), run(folder, 5, restore_best=False)

    (without, state), (history, other) = ranks.run(check)[0]
    assert [[point["step"] for point in entry.pop("validations")] for entry in history] == [[6, 10]] * 3
    assert history == without and state == other


def test_the_best_is_returned_also_by_a_run_that_resumes(ranks: RankPool, folder: str) -> None:
    def check(rank: int) -> Any:
        # The rate is large, so that later weights are no better ones.
        whole = run(folder, 2, lr=0.3)
        last = run(folder, 2, lr=0.3, restore_best=False)
        stored = {"lr": 0.3, "store": Store.create(f"{folder}/store"), "checkpoint_steps": 1}
        for at in (17, 8, 3):
            with pytest.raises(InterruptedError):
                run(folder, 2, interrupted=at, **stored)
        return whole, last, run(folder, 2, **stored)

    (history, state), (same, last), resumed = ranks.run(check)[0]
    assert history == same and state != last, "another one is the best"
    assert json.dumps(resumed[0]) == json.dumps(history) and resumed[1] == state
    points = [point for entry in history for point in [*entry["validations"], entry["validation"]]]
    best = max(points, key=lambda point: point["metrics"]["auc"])
    assert "step" in best, "within an epoch"
    assert torch.load(io.BytesIO(state), weights_only=True)["model"]["1.num_batches_tracked"] % 11 == best["step"] % 11


def test_patience_ends_the_training_within_an_epoch(ranks: RankPool, folder: str) -> None:
    def check(rank: int) -> Any:
        # Weights do not move, so that the first validation stays the best.
        return run(folder, 2, lr=0.0, patience=2, monitor="validation.loss", mode="min", between=nn.Identity)

    history, _ = ranks.run(check)[0]
    assert [point["step"] for point in history[0]["validations"]][:2] == [2, 4]
    assert len(history) == 1 and 6 <= history[0]["validation"]["step"] < 11, "it has ended within the epoch"
