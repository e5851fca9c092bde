"""Trainings that resume from a checkpoint, as the ranks run them: without Spark, on rows of a Parquet file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.errors import DataError
from spark_estimator.store import Store
from tests.estimators.histories import drop_times
from tests.ranks import run_ranks

ROWS, WIDTH = 203, 3


def network(between: type[nn.Module]) -> nn.Module:
    """Its training depends on chance, and its validation on what each rank has counted."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), between(), nn.Dropout(0.3), nn.Linear(8, 1))


class Interrupting(nn.MSELoss):
    """Raises at a batch, on all ranks."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self._left = at

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if self._left is not None and torch.is_grad_enabled():
            self._left -= 1
            if self._left < 0:
                raise InterruptedError
        return super().forward(output, label)


def trained(folder: str, **changed: Any) -> Any:
    """The result of `train` on this rank with rows of ``rows.parquet``."""
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, find_files
    from spark_estimator.data.row_encoder import RowEncoder
    from spark_estimator.estimators.torch.losses import TorchParts
    from spark_estimator.estimators.torch.training import train
    from spark_estimator.estimators.train_spec import TrainSpec

    net = network(changed.pop("between", nn.ReLU))
    optimizer = changed.pop("optimizer", torch.optim.Adam)(net.parameters(), lr=changed.pop("lr", 0.01))
    more = changed.pop("parts", None) or {
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    }
    loss = changed.pop("loss", None) or Interrupting(changed.pop("interrupted", None))
    x, y = Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)), Field(("y",), ("c1",), (1,), "float32", ())
    rows = find_files(f"{folder}/{changed.pop('rows', 'rows')}.parquet")
    parameters = {
        "inputs": (x,),
        "labels": (y,),
        **dict.fromkeys(("weight", "train_steps", "validation_steps", "patience", "held_source")),
        "held_share": 0.2,
        "seed": 5,
        "batch_size": 8,
        "val_batch_size": 8,
        "epochs": 3,
        "shuffle": True,
        "verbose": 1,
        "backward_passes_per_step": 2,
        "use_gpu": False,
        "restore_best": True,
        "large": 1 << 40,
        "store": Store.create(f"{folder}/store"),
        "checkpoint_steps": 3,
        "run_id": "run",
        "source": FileRows(rows, RowEncoder(("x", "y"), (x, y))),
        "framework": TorchParts(net, optimizer, [loss], [1.0], **{"metrics": [[nn.L1Loss()]], **more}),
    }
    return train(TrainSpec(**{**parameters, **changed}))


def in_ranks(rank: int, folder: str) -> dict[str, Any]:
    results: dict[str, Any] = {"refused": []}
    whole = trained(folder, store=None, checkpoint_steps=None, verbose=0)
    # 11 batches an epoch, a step for every two of them; checkpoints after 4, after 8, and at the end.
    for at in (15, 12, 5):
        with pytest.raises(InterruptedError):
            trained(folder, interrupted=at)
    results["cursor"] = rank == 0 and torch.load(f"{folder}/store/runs/run/checkpoint", weights_only=True)["cursor"]
    for changed in (
        {"between": nn.Tanh},
        {"optimizer": torch.optim.SGD},
        {"lr": 0.1},
        {"loss": nn.HuberLoss(delta=0.5)},
        {"batch_size": 16},
        {"rows": "others"},
    ):
        with pytest.raises(DataError) as refusal:
            trained(folder, **changed)
        results["refused"].append(str(refusal.value))
    resumed = trained(folder)
    if rank == 0:
        results["history"] = json.dumps(drop_times(resumed.history)) == json.dumps(drop_times(whole.history))
        results["state"] = resumed.state == whole.state
    limits = RowLimits(cache_bytes=1000, buffer_bytes=400)  # of 200 rows, 60 and 9
    limited = trained(folder, store=None, checkpoint_steps=None, verbose=0, limits=limits)
    with pytest.raises(InterruptedError):
        trained(folder, run_id="limited", limits=limits, interrupted=15)
    again = trained(folder, run_id="limited", limits=limits)
    results["limited"] = rank != 0 or again.state == limited.state != whole.state
    # The same rows in another order are the same training, but not the same place within an epoch.
    with pytest.raises(InterruptedError):
        trained(folder, run_id="turned", interrupted=16)
    with pytest.raises(InterruptedError):  # at its 8th batch: where it was, 7 would be left
        trained(folder, run_id="turned", rows="turned", epochs=2, interrupted=7)
    Path(folder, "store", "runs", "nonsense").mkdir(exist_ok=True)
    Path(folder, "store", "runs", "nonsense", "checkpoint").write_bytes(b"nonsense")
    Path(folder, "store", "runs", "unreadable", "checkpoint").mkdir(parents=True, exist_ok=True)
    for run_id in ("nonsense", "unreadable"):
        with pytest.raises(DataError) as refusal:
            trained(folder, run_id=run_id)
        results["refused"].append(str(refusal.value))
    return results


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_goes_on_within_an_epoch_and_another_s_is_refused_in_words(tmp_path: Path) -> None:
    numbers = numpy.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(numpy.float32)
    table = pyarrow.table({"x": numbers.tolist(), "y": numbers.sum(1)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    pyarrow.parquet.write_table(table.take(list(range(ROWS))[::-1]), tmp_path / "turned.parquet")
    pyarrow.parquet.write_table(table.set_column(1, "y", pyarrow.array(-numbers.sum(1))), tmp_path / "others.parquet")
    first, second = run_ranks(2, in_ranks, 240, args=(str(tmp_path),))
    assert (first["cursor"]["steps"], first["cursor"]["rows"]) == (8, 120)
    assert first["history"] and first["state"] and first["limited"], "bit for bit"
    for refused in (first["refused"], second["refused"]):
        for text, words in zip(
            refused,
            (
                "model: 2 of class ReLU in the checkpoint, 2 of class Tanh now",
                "optimizer: Adam of [6] parameters in the checkpoint, SGD of [6] parameters now",
                "optimizer: initial_lr=0.01 in the checkpoint, initial_lr=0.1 now. ",
                "loss: 1.0 Interrupting(reduction='mean') in the checkpoint, 1.0 HuberLoss(delta=0.5, ",
                "parameters: batch_size=8 in the checkpoint, batch_size=16 now",
                "rows: values with the checksums [",
                "checkpoint is not a checkpoint that this training can resume from",
                "cannot be read on rank 0 (host ",
            ),
            strict=True,
        ):
            assert words in text, text
        assert refused[0].startswith("run_id='run': the checkpoint ") and "is from another training: " in refused[0]
        assert "Use another run_id" in refused[0]
        assert "IsADirectoryError" in refused[-1]
    assert {path.name for path in (tmp_path / "store" / "runs" / "run").iterdir()} == {"attempt.json", "checkpoint"}
