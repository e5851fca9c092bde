"""Trainings in a real MLflow tracking server with a database: their runs, the registry, and a server that goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

pytest.importorskip("mlflow.server", reason="MLflow is not installed")
pytest.importorskip("transformers")

import keras
import lightning.pytorch as pl
import mlflow

from spark_estimator import KerasEstimator, TorchEstimator, TransformersEstimator
from spark_estimator.errors import JobCancelledError
from spark_estimator.lightning import TorchEstimator as LightningEstimator
from tests.launch import clusters
from tests.scenarios.estimators.tracking_server import TrackingServer
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    tracking = TrackingServer(tmp_path_factory.mktemp("tracking"))
    tracking.start()
    yield tracking
    tracking.stop()


@pytest.fixture(autouse=True)
def experiment(server: TrackingServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an experiment for one test, which is the active one."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(server.address)
    name = request.node.name
    mlflow.set_experiment(name)
    yield name
    mlflow.set_tracking_uri(before)


def runs_of(experiment: str) -> list[Any]:
    """All runs of an experiment, the first first."""
    known = mlflow.MlflowClient().get_experiment_by_name(experiment)
    runs = mlflow.MlflowClient().search_runs([known.experiment_id])
    return sorted(runs, key=lambda run: run.info.start_time)


def assert_predicts_as(model: Any, frame: DataFrame, features: list[str], columns: list[str]) -> None:
    """MLflow's model and its function for Spark predict what `transform` adds, bit for bit."""
    expected = model.transform(frame).toPandas()
    loaded = mlflow.pyfunc.load_model(f"runs:/{model.mlflow_run_id}/model")
    predicted = loaded.predict(expected[features])
    assert list(predicted.columns) == columns
    for column in columns:
        assert [str(value) for value in predicted[column]] == [str(value) for value in expected[column]]


def test_one_run_for_any_number_of_ranks(server: TrackingServer, tmp_path: Path) -> None:
    with (
        clusters.connect_server(tmp_path, "local[4]") as address,
        clusters.driver("mlflow_fits.py", address, server.address, folder=tmp_path) as driver,
    ):
        fits: Any = driver.wait(280)["fits"]
    runs = runs_of("ranks")
    assert [run.info.run_id for run in runs] == [fit["run"] for fit in fits]
    assert [run.info.run_name for run in runs] == ["1 ranks", "2 ranks", "3 ranks", "4 ranks"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    client = mlflow.MlflowClient()
    for fit in fits:
        assert [value.value for value in client.get_metric_history(fit["run"], "train_loss")] == fit["losses"]
        assert fit["pyfunc"] and fit["udf"]


def test_the_registry(line: DataFrame, estimator: Make, experiment: str) -> None:
    made = estimator(mlflow={"registered_model_name": "line", "tags": {"team": "a"}}, num_proc=1)
    models = [made.fit(line) for _ in range(2)]
    versions = mlflow.MlflowClient().search_model_versions("name='line'")
    assert {version.run_id for version in versions} == {model.mlflow_run_id for model in models}
    newest = mlflow.pyfunc.load_model("models:/line/2").get_raw_model()
    assert newest.getRunId() == models[1].getRunId()
    assert_predicts_as(models[0], line, ["features"], ["y__output"])


def test_autolog_makes_no_second_run(line: DataFrame, estimator: Make, experiment: str) -> None:
    import mlflow.pyspark.ml
    import mlflow.pytorch

    mlflow.pyspark.ml.autolog(silent=True)
    mlflow.pytorch.autolog(silent=True)
    try:
        model = estimator(mlflow=True, num_proc=1).fit(line)
    finally:
        mlflow.pyspark.ml.autolog(disable=True, silent=True)
        mlflow.pytorch.autolog(disable=True, silent=True)
    (run,) = runs_of(experiment)
    assert run.info.run_id == model.mlflow_run_id


def test_folds_at_the_same_time_are_runs_below_the_active_one(
    line: DataFrame, estimator: Make, experiment: str
) -> None:
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    made = estimator(mlflow={"log_model": False}, num_proc=1, prediction_col="prediction")
    grid = ParamGridBuilder().addGrid(made.learning_rate, [0.01, 0.1]).build()  # type: ignore[attr-defined]
    folds = CrossValidator(
        estimator=made,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    with mlflow.start_run() as parent:
        folds.fit(line)
    runs = [run for run in runs_of(experiment) if run.info.run_id != parent.info.run_id]
    assert len(runs) == 5  # two folds of two points, and the best one on all rows
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent.info.run_id}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert sorted(run.data.params["learning_rate"] for run in runs)[:2] == ["0.01", "0.01"]


class Waiting:
    """A callback that creates a file in its second epoch, and waits there until another file exists."""

    def __init__(self, begun: Path, released: Path) -> None:
        self._begun, self._released = str(begun), str(released)

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch != 1:
            return
        Path(self._begun).touch()
        deadline = time.monotonic() + 120
        while not Path(self._released).exists():
            assert time.monotonic() < deadline, "the test did not let the training continue"
            time.sleep(0.05)


def wait_for(path: Path, thread: threading.Thread) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert thread.is_alive() and time.monotonic() < deadline, f"{path} was not created"
        time.sleep(0.05)


def test_a_cancelled_training_is_a_killed_run(
    line: DataFrame, estimator: Make, experiment: str, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark import InheritableThread

    begun = tmp_path / "begun"
    made = estimator(mlflow=True, callbacks=[Waiting(begun, tmp_path / "never")])
    errors: list[BaseException] = []

    def fit() -> None:
        spark.sparkContext.setJobGroup("training", "a training that is cancelled", interruptOnCancel=True)
        try:
            made.fit(line)
        except JobCancelledError as error:
            errors.append(error)

    thread = InheritableThread(target=fit)
    thread.start()
    wait_for(begun, thread)
    spark.sparkContext.cancelJobGroup("training")
    thread.join(120)
    assert len(errors) == 1
    (run,) = runs_of(experiment)
    assert run.info.status == "KILLED"
    assert "was cancelled in Spark" in run.data.tags["mlflow.note.content"]


def test_a_server_that_goes_away_and_comes_back(
    line: DataFrame, estimator: Make, experiment: str, server: TrackingServer, tmp_path: Path
) -> None:
    begun, released = tmp_path / "begun", tmp_path / "released"
    made = estimator(mlflow=True, callbacks=[Waiting(begun, released)], epochs=4)
    models: list[Any] = []
    thread = threading.Thread(target=lambda: models.append(made.fit(line)))
    thread.start()
    wait_for(begun, thread)
    server.stop()
    released.touch()
    time.sleep(2)  # so that the other epochs log while there is no server
    server.start()
    thread.join(200)
    (run,) = runs_of(experiment)
    assert run.info.status == "FINISHED"
    losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_loss")
    assert [value.value for value in losses] == [row["train_loss"] for row in models[0].getHistory().to_rows()]
    assert_predicts_as(models[0], line, ["features"], ["y__output"])


def test_a_keras_model(line: DataFrame, experiment: str) -> None:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model = KerasEstimator(
        num_proc=2,
        model=net,
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        feature_cols=["x0", "x1", "x2"],
        label_cols=["y"],
        batch_size=16,
        epochs=2,
        verbose=0,
        mlflow={"log_every_n_steps": 2},
    ).fit(line)
    (run,) = runs_of(experiment)
    assert run.info.status == "FINISHED" and "loss_step" in run.data.metrics
    assert_predicts_as(model, line, ["x0", "x1", "x2"], ["y__output"])


class Line(pl.LightningModule):  # type: ignore[misc]
    """Learns `line`'s y, and logs a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, features: torch.Tensor) -> Any:
        return self.net(features)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self(batch["features"]), batch["y"].reshape(-1, 1))
        self.log("my_loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def test_a_lightning_model(line: DataFrame, experiment: str) -> None:
    model = LightningEstimator(
        num_proc=2,
        model=Line(),
        feature_cols=["features"],
        label_cols=["y"],
        batch_size=16,
        epochs=2,
        verbose=0,
        mlflow=True,
    ).fit(line)
    (run,) = runs_of(experiment)
    assert run.info.status == "FINISHED"
    assert_predicts_as(model, line, ["features"], ["y__output"])


def test_a_text_classifier(spark: SparkSession, experiment: str, tmp_path: Path) -> None:
    tiny.classifier().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    rows = [(row["text"], "good" if row["label"] else "bad") for row in tiny.sentences(60)]
    frame = spark.createDataFrame(rows, "text string, kind string")
    model = TransformersEstimator(
        model=str(tmp_path / "base"),
        task="classification",
        label_col="kind",
        num_proc=2,
        epochs=1,
        learning_rate=1e-2,
        batch_size=8,
        max_length=32,
        mlflow=True,
        verbose=0,
    ).fit(frame)
    (run,) = runs_of(experiment)
    assert run.info.status == "FINISHED"
    added = [column for column in model.transform(frame).columns if column not in frame.columns]
    assert_predicts_as(model, frame, ["text"], added)
