"""Large models are returned through the store; those for which there is no room are refused before they train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

import torch
from torch import nn

from spark_estimator import TorchEstimator
from spark_estimator.errors import DataError, PreflightError
from spark_estimator.estimators.persistence import model_transfer
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1g", 1 << 30), ("512m", 512 << 20), ("2048", 2 << 30), ("4GB", 4 << 30), ("7b", 7), ("much", None), ("", None)],
)
def test_amounts_of_memory(text: str, amount: int | None) -> None:
    assert model_transfer.parse_memory(text) == amount


def test_what_could_not_come_back_is_refused_before_it_trains(spark: SparkSession, tmp_path: Path) -> None:
    memory = model_transfer.get_driver_memory(spark)
    assert memory is not None and memory > 100 << 20, "what the JVM has"
    model_transfer.check_room(spark, memory // 10, None)
    with pytest.raises(PreflightError, match=r"spark\.driver\.memory="):
        model_transfer.check_room(spark, memory // 8, None)  # 128 MiB of 1 GiB
    model_transfer.check_room(spark, memory, Store.create(str(tmp_path)))
    with pytest.raises(PreflightError, match=r"the model has 8192 MiB.*store=Store.create"):
        model_transfer.check_room(spark, 8 << 30, None)


def test_a_model_comes_back_through_the_store(
    line: DataFrame, estimator: Callable[..., TorchEstimator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_transfer, "LARGE", 0)
    store = Store.create(str(tmp_path))
    net = nn.Linear(3, 1)
    parameters: dict[str, Any] = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "epochs": 1}
    trained = estimator(**parameters, store=store, run_id="run").fit(line)
    kept = torch.load(tmp_path / "runs" / "run" / "model.pt", weights_only=True)["model"]
    for name, value in trained.getModel().state_dict().items():
        assert torch.equal(value, kept[name])
    assert not torch.equal(trained.getModel().weight, net.weight)  # type: ignore[arg-type]


def test_what_the_store_has_is_what_was_written(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    path, digest = model_transfer.put(store, "run", b"numbers", "model.pt")
    assert model_transfer.download_model(store, path, digest) == b"numbers"
    store.write(path, b"others")
    with pytest.raises(DataError, match="doesn't match the SHA-256 rank 0 reported"):
        model_transfer.download_model(store, path, digest)
    Path(path).unlink()
    with pytest.raises(DataError, match=r"its model is in .* on rank 0's host, but the driver cannot read it"):
        model_transfer.download_model(store, path, digest)
