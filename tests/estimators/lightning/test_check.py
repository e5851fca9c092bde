"""A step of a LightningModule on the first rows."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

from spark_estimator import DataError
from spark_estimator.estimators.lightning.check import LightningTrial
from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.rows.shapes import Fields
from tests.estimators.specs import X, Y

FIELDS = Fields((X,), (Y,), None)


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, column: str = "y", factor: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.column, self.factor = column, factor

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self(batch["x"]).reshape(-1) - batch[self.column]).square().mean() / self.factor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(module: Any) -> tuple[int, ...]:
    features = pyarrow.array([[1.0, 2.0, 3.0]] * 4, pyarrow.list_(pyarrow.float32()))
    labels = pyarrow.array([1.0] * 4, pyarrow.float32())
    rows = pyarrow.RecordBatch.from_arrays([features, labels], names=["c0", "c1"])
    return LightningTrial(LightningParts("lightning.pytorch", module, None)).run(rows, FIELDS)


def test_a_step_leaves_the_module_as_it_is() -> None:
    module = Module()
    before = module.net.weight.clone()
    assert run(module) == (1,)
    assert torch.equal(module.net.weight, before) and module.net.weight.grad is None


def test_what_would_fail_on_the_ranks_fails_here() -> None:
    with pytest.raises(DataError, match="asked its batch for 'label': it is a dict of 'x', 'y'"):
        run(Module("label"))
    with pytest.raises(DataError, match="the loss of the first 4 rows is inf"):
        run(Module(factor=0.0))
