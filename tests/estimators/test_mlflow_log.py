"""A training in MLflow: its parameters, its epochs, its model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import PreflightError, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators import mlflow_log

THERE = importlib.util.find_spec("mlflow") is not None


@pytest.mark.skipif(THERE, reason="MLflow is there")
def test_that_it_is_missing_is_said_before_the_training() -> None:
    with pytest.raises(PreflightError, match="pip install mlflow-skinny"):
        TorchEstimator(mlflow=True)._fit(None)  # type: ignore[arg-type]  # it is not looked at


@pytest.mark.skipif(not THERE, reason="MLflow is not there: pip install mlflow-skinny")
def test_a_run_below_the_active_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    net = nn.Linear(2, 1)
    field = Field(("x",), ("c0",), (2,), "float32", (2,))
    model = TorchModel(
        model=net,
        inputs=[field],
        outputs=[1],
        label_types=["float"],
        label_columns=["y"],
        run_id="named",
        history=[
            {"epoch": n, "train": {"loss": 2.0 - n, "all_metrics": [[0.5]], "metrics": {"right, all": 0.5}}}
            for n in range(2)
        ],
    )
    estimator = TorchEstimator(
        model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=nn.MSELoss(), epochs=2, learning_rate=0.5
    )
    with mlflow.start_run() as above:
        run = mlflow.get_run(mlflow_log.log(estimator, model))
    assert run.data.params["epochs"] == "2"
    assert run.data.params["learning_rate"] == "0.5"
    assert "MSELoss()" in run.data.params["loss"]
    assert run.data.metrics == {"train_loss": 1.0, "train_right_ all": 0.5}
    assert run.data.tags["mlflow.parentRunId"] == above.info.run_id
    assert run.data.tags["spark_estimator.run_id"] == "named"
    losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_loss")
    assert [(loss.step, loss.value) for loss in losses] == [(0, 2.0), (1, 1.0)]
    folder = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="model")
    features = numpy.ones((3, 2), numpy.float32)
    assert numpy.allclose(TorchModel.load(folder).predict(features), model.predict(features))
    assert mlflow.active_run() is None
