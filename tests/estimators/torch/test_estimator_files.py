"""`TorchEstimator` in a folder: objects of PyTorch's own need no trust, functions and other classes do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, trust_files
from spark_estimator.store import Store
from tests.estimators.conftest import linear

Make = Callable[..., TorchEstimator]


def test_an_estimator_of_known_classes_needs_no_trust(estimator: Make, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), linear())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.25)
    saved = estimator(
        model=net,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        loss=[nn.SmoothL1Loss(), nn.functional.mse_loss],
        label_cols=["y", "z"],
        store=Store.create(str(tmp_path / "store"), storage_options={"key": "canary"}),
        input_shapes=[[-1, 3]],
    )
    path = str(tmp_path / "estimator")
    with pytest.warns(UserWarning, match="store is not saved"):
        saved.save(path)
    assert not any(b"canary" in file.read_bytes() for file in Path(path).rglob("*") if file.is_file())
    loaded = TorchEstimator.load(path)
    assert (loaded.uid, loaded.getEpochs(), loaded.getLabelCols()) == (saved.uid, 2, ["y", "z"])
    assert (loaded.getStore(), loaded.getInputShapes()) == (None, [[-1, 3]])
    parameter_ids = {id(parameter) for parameter in loaded.getModel().parameters()}
    groups = loaded.getOptimizer().param_groups
    assert {id(parameter) for group in groups for parameter in group["params"]} == parameter_ids
    assert groups[0]["lr"] == 0.25
    assert loaded.getLrScheduler().optimizer is loaded.getOptimizer()
    assert loaded.getLoss()[1] is nn.functional.mse_loss
    assert torch.equal(loaded.getModel()[2].weight, linear().weight)
    with pytest.raises(FileExistsError, match=r"overwrite\(\)"):
        saved.save(path)
    saved.setStore(None).write().overwrite().save(path)
    assert TorchEstimator.read().load(path).getBatchSize() == 16


def test_functions_need_trust(estimator: Make, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    estimator(metrics=[lambda output, label: (output - label).abs().mean()]).save(path)
    with pytest.raises(DataError, match=r"aren't PyTorch's own.*trust=True \(in a pipeline: use trust_files"):
        TorchEstimator.load(path)
    metric = TorchEstimator.load(path, trust=True).getMetrics()[0]
    assert metric(torch.ones(2), torch.zeros(2)) == 1
    with trust_files():
        assert len(TorchEstimator.load(path).getMetrics()) == 1
    with pytest.raises(DataError):
        TorchEstimator.load(path)


def test_an_estimator_of_a_parametrized_module_is_saved(estimator: Make, tmp_path: Path) -> None:
    net, rows = nn.utils.parametrizations.orthogonal(linear()), torch.rand(5, 3)
    estimator(model=net).save(str(tmp_path / "estimator"))
    again = TorchEstimator.load(str(tmp_path / "estimator"), trust=True).getModel()
    assert again is not None and torch.equal(again(rows), net(rows))
