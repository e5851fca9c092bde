"""`TorchModel`: predictions on DataFrames and without Spark, types of outputs, folders."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field

from .conftest import line_rows, linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEATURES = Field(("features",), ("c0",), (3,), "float32", (3,))


class Own(nn.Module):
    """A class that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def model_of(net: nn.Module, outputs: int = 1, kind: str = "float", **given: Any) -> TorchModel:
    params = {"feature_columns": ["features"], "label_columns": ["y"], "run_id": "run", **given}
    return TorchModel(model=net.eval(), inputs=[FEATURES], outputs=[outputs], label_types=[kind], **params)


def expected(net: nn.Module) -> numpy.ndarray[Any, Any]:
    with torch.no_grad():
        return net(torch.from_numpy(line_rows()[0])).numpy()


def test_transform_predicts_every_row_in_its_place(line: DataFrame) -> None:
    model = model_of(linear(), batch_size=16)
    found = model.transform(line).select("features", "y__output").collect()
    got = numpy.array([row.y__output for row in found])
    with torch.no_grad():
        right = linear()(torch.tensor([row.features for row in found])).numpy().reshape(-1)
    assert numpy.allclose(got, right, atol=1e-6)
    assert len(found) == 203


def test_other_names(line: DataFrame) -> None:
    renamed = line.withColumnRenamed("features", "inputs")
    model = model_of(linear()).setFeatureColumns(["inputs"]).setOutputCols(["guess"])
    assert [*renamed.columns, "guess"] == model.transform(renamed).columns
    assert model.getOutputCols() == ["guess"]


@pytest.mark.parametrize(
    ("kind", "outputs", "output_type", "spark_type"),
    [
        ("float", 1, "label", "float"),
        ("int", 1, "label", "int"),
        ("vector", 1, "label", "vector"),
        ("bigint", 4, "label", "vector"),
        ("int", 1, "array", "array<float>"),
        ("float", 4, "array", "array<float>"),
        ("float", 1, "vector", "vector"),
        ("array<double>", 1, "label", "array<double>"),
    ],
)
def test_types_of_outputs(line: DataFrame, kind: str, outputs: int, output_type: str, spark_type: str) -> None:
    frame = model_of(nn.Linear(3, outputs), outputs, kind, output_type=output_type).transform(line.limit(2))
    assert frame.schema["y__output"].dataType.simpleString() == spark_type
    assert all(row.y__output is not None for row in frame.collect())


def test_whole_numbers_are_rounded(line: DataFrame) -> None:
    frame = model_of(linear(), kind="int").transform(line.limit(50)).toPandas()
    right = linear()(torch.tensor(numpy.stack(frame["features"]))).detach().numpy().reshape(-1)
    assert frame["y__output"].tolist() == numpy.rint(right).astype(int).tolist()


def test_rows_with_null_get_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, [1.0, 2.0, 3.0]), (2, None), (3, [0.0, 0.0, 0.0])], "n int, features array<float>"
    )
    rows = {row.n: row.y__output for row in model_of(nn.Linear(3, 2), 2).transform(frame).collect()}
    assert rows[2] is None
    assert len(rows[1]) == len(rows[3]) == 2


def test_a_vector_of_another_length_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0, 2.0],)], "features array<float>")
    with pytest.raises(Exception, match="'features' has 3 values in the first rows, but 2 in row 0"):
        model_of(linear()).transform(frame).collect()


def test_an_output_column_that_is_there_already(line: DataFrame) -> None:
    with pytest.raises(ValueError, match="has a column 'y' already: choose others with setOutputCols"):
        model_of(linear()).setOutputCols(["y"]).transform(line)


def test_predict_without_spark() -> None:
    features = line_rows()[0]
    model = model_of(linear())
    right = expected(linear())
    assert numpy.allclose(model.predict(features), right)
    assert numpy.allclose(model.predict(pandas.DataFrame({"features": list(features)})), right)
    with pytest.raises(DataError, match=r"an array of shape \[2, 5\] was given for features"):
        model.predict(numpy.zeros((2, 5)))
    with pytest.raises(DataError, match="there is no column 'features' among"):
        model.predict(pandas.DataFrame({"x": [1.0]}))


def test_saved_and_loaded_without_running_code(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))
    saved = model_of(net, history=[{"epoch": 0}], output_cols=["guess"])
    saved.save(path)
    loaded = TorchModel.load(path)
    assert loaded.uid == saved.uid
    assert (loaded.getHistory(), loaded.getOutputCols(), loaded.getRunId()) == ([{"epoch": 0}], ["guess"], "run")
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(net.eval()))
    with pytest.raises(FileExistsError, match=r"overwrite\(\)"):
        saved.save(path)
    saved.write().overwrite().save(path)
    told = json.loads((tmp_path / "model" / "spark_estimator.json").read_text())
    assert told["inputs"][0]["names"] == ["features"]
    assert [one.name for one in tmp_path.iterdir()] == ["model"], "nothing half-written is left"


def test_own_classes_need_a_module_or_trust(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    model_of(Own()).save(path)
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own.*model=YourModule.*trust=True"):
        TorchModel.load(path)
    blank = Own()
    nn.init.zeros_(blank.inner.weight)
    assert numpy.allclose(TorchModel.load(path, model=blank).predict(line_rows()[0]), expected(linear()))
    assert not blank.inner.weight.any(), "the module that was given stays as it was"
    assert numpy.allclose(TorchModel.load(path, trust=True).predict(line_rows()[0]), expected(linear()))


def test_a_poisoned_file_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model_of(linear()).save(str(path))
    touched = tmp_path / "touched"

    class Poison:
        def __reduce__(self) -> Any:
            return (Path.touch, (touched,))

    torch.save(Poison(), path / "module.pt")
    with pytest.raises(DataError):
        TorchModel.load(str(path))
    torch.save({"weight": Poison()}, path / "weights.pt")
    with pytest.raises(Exception, match=r"(?i)weights.only|unsupported"):
        TorchModel.load(str(path), model=linear())
    assert not touched.exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no TorchModel: there is no spark_estimator\.json"):
        TorchModel.load(str(tmp_path))
    with pytest.raises(DataError, match="folders that the driver sees"):
        TorchModel.load("s3://bucket/model")


def test_in_a_pipeline_that_is_saved(line: DataFrame, spark: SparkSession, tmp_path: Path, estimator: Any) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler

    assembler = VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="assembled")
    fitted = Pipeline(stages=[assembler, estimator(feature_cols=["assembled"], epochs=1)]).fit(line)
    path = str(tmp_path / "pipeline")
    fitted.write().overwrite().save(path)
    before = [row.y__output for row in fitted.transform(line).orderBy("x0").collect()]
    after = [row.y__output for row in PipelineModel.load(path).transform(line).orderBy("x0").collect()]
    assert before == after


@pytest.mark.parametrize(("kind", "right"), [("boolean", [False, True]), ("int", [0, 1])])
def test_logits_are_compared_with_nought(spark: SparkSession, kind: str, right: list[Any]) -> None:
    frame = spark.createDataFrame([([-8.0, 0.0, 0.0],), ([0.2, 0.0, 0.0],)], "features array<float>")
    net = nn.Linear(3, 1, bias=False)
    nn.init.ones_(net.weight)
    model = TorchModel(
        model=net,
        inputs=[FEATURES],
        outputs=[1],
        label_types=[kind],
        thresholds=[0.0],
        feature_columns=["features"],
        label_columns=["y"],
    )
    assert [row.y__output for row in model.transform(frame).collect()] == right


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        ("boolean", 0.4, False),
        ("tinyint", 200.0, 127),
        ("date", 1.2, datetime.date(1970, 1, 2)),
        ("double", 16777217.0, 16777217.0),
    ],
)
def test_values_in_the_label_s_type(spark: SparkSession, kind: str, value: float, right: object) -> None:
    frame = spark.createDataFrame([([value],)], "features array<double>")
    field = Field(("features",), ("c0",), (1,), "float64", (1,))
    model = TorchModel(
        model=nn.Identity(),
        inputs=[field],
        outputs=[1],
        label_types=[kind],
        feature_columns=["features"],
        label_columns=["y"],
    )
    assert model.transform(frame).first().y__output == right  # type: ignore[union-attr]


def test_predict_reads_pandas_as_spark_does() -> None:
    field = Field(("t",), ("c0",), (1,), "float64", (1,))
    params = {"feature_columns": ["t"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[1], label_types=["double"], **params)
    frame = pandas.DataFrame({"t": pandas.to_datetime([1_700_000_001], unit="s")})
    assert model.predict(frame).tolist() == [[1_700_000_001.0]]
    assert model.predict({"t": numpy.array([2.0, 3.0])}).tolist() == [[2.0], [3.0]]


def test_buffers_that_are_not_in_the_state_are_saved(tmp_path: Path) -> None:
    net = nn.Sequential(linear())
    net[0].register_buffer("extra", torch.full((1,), 2.0), persistent=False)
    model_of(net).save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.getModel()[0].extra.tolist() == [2.0]  # type: ignore[index]
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(linear()))
