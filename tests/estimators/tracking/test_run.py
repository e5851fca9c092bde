"""Trainings in MLflow: one run for any number of ranks, live metrics, and a model that predicts as `transform` does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn

from spark_estimator import PreflightError, TorchEstimator, TorchModel, TransformersModel, WorkerFailedError
from spark_estimator.data.fields import Field
from spark_estimator.estimators.history import History
from spark_estimator.estimators.metadata import ModelMetadata
from spark_estimator.estimators.mlflow_options import MlflowOptions
from spark_estimator.estimators.tracking import flavour
from spark_estimator.estimators.tracking import run as run_module
from spark_estimator.estimators.tracking.recorded_metrics import RecordedMetrics
from spark_estimator.estimators.tracking.run import TrackedRun
from spark_estimator.estimators.tracking.signature import Features
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THERE = importlib.util.find_spec("mlflow") is not None
needs_mlflow = pytest.mark.skipif(not THERE, reason="needs mlflow or mlflow-skinny")
SIGNALS = ("train_loss", "validation_loss")


@pytest.mark.skipif(THERE, reason="MLflow is installed")
def test_that_it_is_missing_is_said_before_the_training() -> None:
    with pytest.raises(PreflightError, match="pip install mlflow"):
        TorchEstimator(mlflow=True)._fit(None)  # type: ignore[arg-type]  # it is not looked at


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """mlflow, with a new store."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    has_database = importlib.util.find_spec("sqlalchemy") is not None
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db" if has_database else f"file:{tmp_path / 'runs'}")
    mlflow.create_experiment("tests", artifact_location=f"file:{tmp_path / 'artifacts'}")
    mlflow.set_experiment("tests")
    yield mlflow
    mlflow.set_tracking_uri(before)


def runs_of(mlflow: Any) -> list[Any]:
    experiment = mlflow.get_experiment_by_name("tests")
    return list(mlflow.MlflowClient().search_runs([experiment.experiment_id]))


class Fitted:
    """As far as a run asks a model."""

    params: ClassVar[dict[str, Any]] = {"task": "causal", "labels": ["a"], "history": History([])}

    def hasParam(self, name: str) -> bool:
        return name in self.params

    def _value(self, name: str) -> Any:
        return self.params[name]


def tracked(parameters: dict[str, Any], **options: Any) -> TrackedRun:
    made = MlflowOptions.from_parameter({"log_model": False, **options})
    assert made is not None
    return TrackedRun(made, "name", parameters, {}, RecordedMetrics(lambda entry: {}, "loss"))


def finish(run: TrackedRun) -> None:
    run.finish(Fitted(), Features({}), [], 0)  # type: ignore[arg-type]  # in the place of a model


@needs_mlflow
def test_parameters_are_texts_also_those_that_the_training_chooses(tracking: Any) -> None:
    with tracked({"model": "org/name", "task": None, "epochs": 2, "labels": None, "nulls": []}) as run:
        assert runs_of(tracking)[0].info.status == "RUNNING"
        finish(run)
    (stored,) = runs_of(tracking)
    assert stored.data.params == {"model": "org/name", "epochs": "2", "task": "causal"}
    assert stored.info.status == "FINISHED" and stored.info.run_name == "name"


@needs_mlflow
def test_runs_are_nested_in_the_one_of_the_environment(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which jobs and MLflow Projects set. It stays as it is, and so does the variable."""
    client = tracking.MlflowClient()
    project = client.create_run(tracking.get_experiment_by_name("tests").experiment_id, run_name="project").info
    monkeypatch.setenv("MLFLOW_RUN_ID", project.run_id)
    for _ in range(2):
        with tracked({"epochs": 1}) as run:
            finish(run)
        assert os.environ["MLFLOW_RUN_ID"] == project.run_id
    runs = {run.info.run_id: run for run in runs_of(tracking)}
    parent = runs.pop(project.run_id)
    assert (parent.info.run_name, parent.info.status, parent.data.params) == ("project", "RUNNING", {})
    assert len(runs) == 2
    assert all(run.data.tags["mlflow.parentRunId"] == project.run_id for run in runs.values())
    with tracking.start_run() as continued:
        assert continued.info.run_id == project.run_id


@needs_mlflow
def test_a_parent_that_does_not_exist_is_refused(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    for options in ({}, {"experiment_name": "tests"}):
        with pytest.raises(PreflightError, match=f"beginning a run at .*{'0' * 32}.*Nothing was trained"):
            with tracked({}, **options):
                raise AssertionError
    assert not runs_of(tracking)


@needs_mlflow
def test_a_store_of_artifacts_that_cannot_be_written(
    tracking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends at once without them, and a line has the error."""
    lines: list[str] = []
    monkeypatch.setattr(run_module, "announce", lines.append)
    (tmp_path / "file").touch()
    tracking.create_experiment("unwritable", artifact_location=f"file:{tmp_path}/file/x")
    with tracked({}, experiment_name="unwritable") as run:
        run._submit("log the plots", lambda: run._client.log_text(run.run_id, "text", "plots/text"))
        finish(run)
    assert tracking.get_run(run.run_id).info.status == "FINISHED"
    assert len(lines) == 1 and re.match(r"mlflow: could not log the plots: NotADirectoryError: .*file", lines[0])


@needs_mlflow
def test_a_registration_that_is_repeated_logs_the_model_once(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    calls: list[Any] = []

    def log_model(*_: Any) -> str:
        calls.append("logged")
        return "models:/m-1"

    def register_model(address: str, name: str) -> None:
        calls.append((address, name))
        if len(calls) == 2:
            raise ConnectionError("the server restarts")

    monkeypatch.setattr(run_module.flavour, "log_model", log_model)
    monkeypatch.setattr(mlflow, "register_model", register_model)
    with tracked({}, experiment_name="tests", log_model=True, registered_model_name="line") as run:
        finish(run)
    assert calls == ["logged", ("models:/m-1", "line"), ("models:/m-1", "line")]
    assert tracking.get_run(run.run_id).info.status == "FINISHED"


class Waiting:
    """A callback that keeps the second epoch waiting until the driver has seen the first one in MLflow."""

    def __init__(self, file: str) -> None:
        self._file = file

    def on_epoch_begin(self, epoch: int) -> None:
        deadline = time.monotonic() + 60
        while epoch == 1 and not Path(self._file).exists():
            assert time.monotonic() < deadline, "the first epoch's numbers did not come"
            time.sleep(0.02)


class Noting(Waiting):
    """It also notes the variables of its rank."""

    def on_epoch_begin(self, epoch: int) -> None:
        super().on_epoch_begin(epoch)
        Path(self._file).with_name(f"rank {os.getpid()}").write_text(json.dumps(dict(os.environ)))


@needs_mlflow
def test_ranks_sample_their_hosts_without_the_drivers_credentials(
    line: DataFrame, estimator: Any, tracking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psutil")
    for name in ("AWS_SECRET_ACCESS_KEY", "DATABRICKS_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "a secret of the driver")
    seen, ended = tmp_path / "seen", threading.Event()

    def watch() -> None:
        wanted = {f"system/rank_{rank}/cpu_utilization_percentage" for rank in (0, 1)}
        while not ended.wait(0.1):
            if any(wanted <= run.data.metrics.keys() for run in runs_of(tracking)):
                seen.touch()

    threading.Thread(target=watch, daemon=True).start()
    try:
        options = {"log_system_metrics": 0.2, "log_model": False}
        estimator(mlflow=options, callbacks=[Noting(str(seen))]).fit(line)
    finally:
        ended.set()
    notes = [path.read_text() for path in tmp_path.glob("rank *")]
    assert len(notes) == 2 and not any("a secret of the driver" in text for text in notes)
    (run,) = runs_of(tracking)
    history = tracking.MlflowClient().get_metric_history(run.info.run_id, "system/rank_1/disk_usage_percentage")
    assert [value.step for value in history] == list(range(len(history)))


@needs_mlflow
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_from_its_first_epoch_to_its_model(
    line: DataFrame, estimator: Any, tracking: Any, tmp_path: Path, spark: SparkSession
) -> None:
    seen = tmp_path / "seen"

    def watch() -> None:
        while not seen.exists():
            children = [run for run in runs_of(tracking) if "train_loss" in run.data.metrics]
            if children and children[0].info.status == "RUNNING":
                seen.touch()
            time.sleep(0.1)

    watcher = threading.Thread(target=watch, daemon=True)
    with tracking.start_run() as parent:
        watcher.start()
        made = estimator(
            mlflow={"log_every_n_steps": 2, "tags": {"team": "a"}, "run_name": "mine"},
            validation="held",
            callbacks=[Waiting(str(seen))],
            prediction_col="p",
            output_type="array",
        )
        model = made.fit(line)
        assert tracking.active_run().info.run_id == parent.info.run_id
    watcher.join(5)
    assert seen.exists()

    (run,) = [run for run in runs_of(tracking) if run.info.run_id != parent.info.run_id]
    assert run.info.run_id == model.mlflow_run_id and run.info.run_name == "mine" and run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id and run.data.tags["team"] == "a"
    assert run.data.params["epochs"] == "2" and "MSELoss()" in run.data.params["loss"]
    client = tracking.MlflowClient()
    for name in SIGNALS:
        values = [(value.step, value.value) for value in client.get_metric_history(run.info.run_id, name)]
        assert values == [(row["epoch"], row[name]) for row in model.getHistory().to_rows()]
    steps = client.get_metric_history(run.info.run_id, "train_loss_step")
    assert [value.step for value in steps] == [2, 4, 6, 8, 10] and all(value.value > 0 for value in steps)

    folder = tracking.artifacts.download_artifacts(f"runs:/{run.info.run_id}/model")
    loaded = tracking.pyfunc.load_model(folder)
    right = model.transform(line).select("features", "y__output", "p").toPandas()
    predicted = loaded.predict(right[["features"]])
    assert list(predicted.columns) == ["y__output", "p"]
    assert predicted["p"].tolist() == right["p"].tolist()
    assert [list(row) for row in predicted["y__output"]] == [list(row) for row in right["y__output"]]
    assert loaded.metadata.signature.inputs.input_names() == ["features"]
    assert loaded.metadata.load_input_example(folder) is not None
    of_spark = tracking.pyfunc.spark_udf(spark, folder, result_type="double", env_manager="local")
    assert line.select(of_spark("features").alias("p")).toPandas()["p"].tolist() == right["p"].tolist()
    assert TorchModel.load(folder).getRunId() == model.getRunId()


@needs_mlflow
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_null_in_texts_and_categories_by_spark_udf(tracking: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Null in an integer column of categories, and a prediction of type string that is null."""
    from transformers import BertConfig, BertForSequenceClassification

    coded = TorchModel(
        model=nn.Embedding(5, 1),
        inputs=[Field(("code",), ("c0",), (1,), "int64", ())],
        outputs=[1],
        label_types=["float"],
        feature_columns=["code"],
        label_columns=["y"],
        categories={"code": {"hash": 5}},
    )
    size = {
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    texts = TransformersModel(
        model=BertForSequenceClassification(BertConfig(**size, num_labels=2)).eval(),
        tokenizer=tiny.tokenizer(),
        task="classification",
        feature_columns=["text"],
        label_columns=["k"],
        labels=["good", "bad"],
        label_type="string",
    )
    frame = spark.createDataFrame([("the cat", 7), (None, None), ("the dog", 8)], "text string, code int").coalesce(1)
    options = MlflowOptions.from_parameter(True)
    assert options is not None
    for model, name in ((texts, "text"), (coded, "code")):
        features = Features.from_frame(frame, {name: frame.schema[name].dataType.simpleString()})
        with tracking.start_run() as run:
            flavour.log_model(model, features, options)
        predict = tracking.pyfunc.spark_udf(spark, f"runs:/{run.info.run_id}/model", env_manager="local")
        (column,) = (column.name for column in model._make_prediction_columns())
        rows = model.transform(frame).withColumn("of udf", predict(name)).collect()
        assert [row["of udf"] for row in rows] == [row[column] for row in rows]
        assert (rows[1]["of udf"] is None) == (name == "text") and rows[0]["of udf"] is not None


class Total(nn.Module):
    """The sum of its columns."""

    def forward(self, when: torch.Tensor, wall: torch.Tensor, day: torch.Tensor) -> torch.Tensor:
        return when.reshape(-1, 1) / 7 + wall.reshape(-1, 1) / 11 + day.reshape(-1, 1) * 1e6


@needs_mlflow
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_times_and_days_by_spark_udf(tracking: Any, spark: SparkSession) -> None:
    """MLflow takes times without a zone, and makes times of days."""
    kinds = {"when": "float64", "wall": "float64", "day": "int64"}
    known = {"day": "date", "wall": "timestamp_ntz"}
    fields = [
        Field((name,), (f"c{place}",), (1,), dtype, (1,), times=(known.get(name, ""),))
        for place, (name, dtype) in enumerate(kinds.items())
    ]
    zone, setting = "America/Los_Angeles", "spark.sql.session.timeZone"
    metadata = ModelMetadata({}, fields, [1], ["double"], zone=zone)
    names = {"feature_columns": list(kinds), "label_columns": ["y"]}
    model = TorchModel(model=Total().eval(), _metadata=metadata, **names)
    options = MlflowOptions.from_parameter({"input_example": False})
    assert options is not None
    before = spark.conf.get(setting)
    spark.conf.set(setting, zone)
    try:
        times = [datetime(year, month, 8, 2, 30) for year in (2020, 2100) for month in (3, 7)]
        rows = [(time, time, time.date()) for time in times]
        frame = spark.createDataFrame(rows, "when timestamp, wall timestamp_ntz, day date").coalesce(1)
        features = Features(dict(frame.dtypes))
        with tracking.start_run() as run:
            flavour.log_model(model, features, options)
        uri = f"runs:/{run.info.run_id}/model"
        right = [row.y__output for row in model.transform(frame).collect()]
        predict = tracking.pyfunc.spark_udf(spark, uri, result_type="double", env_manager="local")
        assert [row.p for row in frame.select(predict(*kinds).alias("p")).collect()] == right
        assert tracking.pyfunc.load_model(uri).predict(frame.toPandas())["y__output"].tolist() == right
    finally:
        spark.conf.set(setting, before)


class Failing:
    """A callback that fails."""

    def on_epoch_begin(self, epoch: int) -> None:
        raise KeyError("the wrong key")


@needs_mlflow
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_that_fails(line: DataFrame, estimator: Any, tracking: Any) -> None:
    with pytest.raises(WorkerFailedError):
        estimator(mlflow=True, callbacks=[Failing()], num_proc=1).fit(line)
    (run,) = runs_of(tracking)
    assert run.info.status == "FAILED"
    assert "rank 0" in run.data.tags["mlflow.note.content"]
    text = Path(tracking.artifacts.download_artifacts(f"runs:/{run.info.run_id}/error.txt")).read_text()
    assert "the wrong key" in text
