"""Models and estimators in the form in which Horovod 0.28 saves them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from pyspark.ml.linalg import DenseVector
from pyspark.sql.types import FloatType
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.estimators.persistence.horovod_files import HorovodFile
from tests.estimators.conftest import Poison


def encoded(values: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else base64.b64encode(cloudpickle.dumps(value)).decode("ascii")
        for name, value in values.items()
    }


def saved(folder: Path, kind: str, values: dict[str, Any], *, one_file: bool = False) -> str:
    """With a store Horovod writes a file, else Spark writes a folder."""
    content = {
        "class": kind,
        "timestamp": 1,
        "sparkVersion": "3.3.0",
        "uid": "TorchModel_0123",
        "paramMap": encoded(values),
        "defaultParamMap": encoded({"loss": None, "inmemory_cache_all": False}),
    }
    target = folder / "metadata" if one_file else folder / "metadata" / "part-00000"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(content, separators=(",", ":")))
    return str(folder)


def parts() -> dict[str, Any]:
    net = nn.Linear(2, 1)
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "input_shapes": [[-1, 2]]}


MODEL: dict[str, Any] = {
    "history": [{"epoch": 0, "train": {"loss": 0.5, "all_metrics": [{"group_0_y": 0.25}]}}],
    "feature_columns": ["x"],
    "label_columns": ["y"],
    "outputCols": ["guess"],
    "run_id": "pytorch_1",
    "_metadata": {
        "x": {"spark_data_type": DenseVector, "shape": None, "intermediate_format": "nochange"},
        "y": {"spark_data_type": FloatType, "shape": None, "intermediate_format": "nochange"},
    },
}


def test_a_hostile_folder_runs_nothing(tmp_path: Path, marker: Path) -> None:
    for kind in (TorchModel, TorchEstimator):
        path = saved(tmp_path / kind.__name__, f"horovod.spark.torch.estimator.{kind.__name__}", {"x": Poison(marker)})
        with pytest.raises(DataError, match=r"was saved by Horovod, as pickles.*trust=True"):
            kind.load(path)
        assert not marker.exists()


def test_metadata_that_is_deep_is_none_of_horovod(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("[" * 200_000)
    assert HorovodFile.read(tmp_path) is None


@pytest.mark.parametrize("one_file", [False, True])
def test_a_model(tmp_path: Path, one_file: bool) -> None:
    net = parts()
    path = saved(tmp_path / "model", "horovod.spark.torch.estimator.TorchModel", {**MODEL, **net}, one_file=one_file)
    with pytest.raises(DataError, match=r"was saved by Horovod, as pickles.*trust=True"):
        TorchModel.load(path)
    loaded = TorchModel.load(path, trust=True)
    assert loaded.uid == "TorchModel_0123"
    assert torch.equal(loaded.getModel().weight, net["model"].weight)  # type: ignore[arg-type]
    assert not loaded.getModel().training
    assert (loaded.getFeatureColumns(), loaded.getOutputCols()) == (["x"], ["guess"])
    assert loaded.getHistory().to_rows() == [{"epoch": 0, "train_loss": 0.5, "train_metric_0": 0.25}]
    assert loaded.getOptimizer().param_groups[0]["lr"] == 0.1
    other = TorchModel.load(path, model=nn.Linear(2, 1), trust=True)
    assert torch.equal(other.getModel().weight, net["model"].weight)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"holds a horovod.spark.torch.estimator.TorchModel, not a TorchEstimator"):
        TorchEstimator.load(path, trust=True)


def test_a_model_of_torchscript_and_one_of_lightning(tmp_path: Path) -> None:
    script = torch.jit.script(nn.Linear(2, 1))
    stream = io.BytesIO()
    torch.jit.save(script, stream)
    stream.seek(0)
    values = {**MODEL, "model": stream, "history": {"train_loss": torch.tensor(0.5)}}
    path = saved(tmp_path / "model", "horovod.spark.lightning.estimator.TorchModel", values)
    loaded = TorchModel.load(path, trust=True)
    assert torch.equal(loaded.getModel()(torch.ones(1, 2)), script(torch.ones(1, 2)))
    assert loaded.getHistory()[0]["logged"]["train_loss"] == 0.5


def test_an_estimator(tmp_path: Path) -> None:
    values = {**parts(), "feature_cols": ["x"], "label_cols": ["y"], "epochs": 3, "store": None}
    values |= {"partitions_per_process": 4, "metrics": []}
    path = saved(tmp_path / "estimator", "horovod.spark.torch.estimator.TorchEstimator", values)
    loaded = TorchEstimator.load(path, trust=True)
    assert (loaded.getEpochs(), loaded.getStore(), loaded.getFeatureCols()) == (3, None, ["x"])
    assert loaded.getPartitionsPerProcess() == 4  # type: ignore[attr-defined]
    model = loaded.getModel()
    assert model is not None
    assert next(iter(model.parameters())).shape == (1, 2)


def test_what_is_none_of_horovods_or_cannot_be_opened(tmp_path: Path) -> None:
    assert HorovodFile.read(tmp_path) is None
    (tmp_path / "metadata").write_text("{")
    assert HorovodFile.read(tmp_path) is None
    (tmp_path / "metadata").write_text(json.dumps({"class": "spark_estimator.TorchModel"}))
    assert HorovodFile.read(tmp_path) is None
    path = saved(tmp_path / "model", "horovod.spark.torch.estimator.TorchModel", MODEL)
    part = Path(path) / "metadata" / "part-00000"
    content = json.loads(part.read_text())
    content["paramMap"]["history"] = base64.b64encode(b"\x80\x04cgone_module\nThing\n.").decode()
    part.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"the parameter 'history' can't be opened: ModuleNotFoundError"):
        TorchModel.load(path, trust=True)
