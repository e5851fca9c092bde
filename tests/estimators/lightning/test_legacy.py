"""Plain modules as LightningModules: `to_lightning_module`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.estimators.conftest import line_rows, linear

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

from spark_estimator.lightning import legacy


def test_a_plain_module_as_a_lightning_module() -> None:
    """As Horovod's `to_lightning_module`, in a Trainer of the user's."""
    net = linear()
    features, labels = (torch.from_numpy(each) for each in line_rows())
    weights = torch.arange(203.0) % 3
    rows = [{"x": x, "y": y, "w": w} for x, y, w in zip(features, labels, weights, strict=True)]
    module = legacy.to_lightning_module(
        net, torch.optim.SGD(net.parameters(), lr=0.1), nn.MSELoss(), None, ["x"], ["y"], "w", validation=0.1
    )
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=203)  # type: ignore[arg-type]
    off: dict[str, Any] = {f"enable_{name}": False for name in ("checkpointing", "progress_bar", "model_summary")}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, **off)
    expected = float(((linear()(features).reshape(-1) - labels) ** 2 * weights).mean())
    trainer.fit(module, loader, loader)
    assert float(trainer.callback_metrics["train_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(trainer.callback_metrics["val_loss"]) < expected
    with pytest.raises(ValueError, match="1 losses and 1 loss_weights were given for 2 label columns"):
        legacy.to_lightning_module(net, trainer, nn.MSELoss(), None, ["x"], ["y", "z"], None, None)
