"""What the models of all frameworks share: `transform` on DataFrames, the names of columns, pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from tests.estimators.conftest import linear
from tests.estimators.torch_models import OUTPUTS, classifier_of, model_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_transform_predicts_every_row_in_its_place(line: DataFrame) -> None:
    model = model_of(linear(), batch_size=16)
    predicted = model.transform(line).select("features", "y__output").collect()
    got = numpy.array([row.y__output for row in predicted])
    with torch.no_grad():
        right = linear()(torch.tensor([row.features for row in predicted])).numpy().reshape(-1)
    assert numpy.allclose(got, right, atol=1e-6)
    assert len(predicted) == 203


def test_other_names(line: DataFrame) -> None:
    renamed = line.withColumnRenamed("features", "inputs")
    model = model_of(linear()).setFeatureColumns(["inputs"]).setOutputCols(["guess"])
    assert [*renamed.columns, "guess"] == model.transform(renamed).columns
    assert model.getOutputCols() == ["guess"]


def test_an_output_column_that_is_there_already(line: DataFrame) -> None:
    with pytest.raises(ValueError, match="has a column 'y' already: choose others with setOutputCols"):
        model_of(linear()).setOutputCols(["y"]).transform(line)


def test_names_that_several_columns_have(spark: SparkSession) -> None:
    model = TorchModel(
        model=torch.nn.Linear(1, 1),
        inputs=[Field(("x`y.z",), ("c0",), (1,), "float32", (1,))],
        outputs=[1],
        label_types=["double"],
        feature_columns=["x`y.z"],
        label_columns=["y"],
    )
    struct = "named_struct('a', 1.0D) as s"
    for name, columns, words in (
        ("x`y.z", "1.0D as `x``y.z`, 2.0D as `x``y.z`", "there are 2 columns named 'x`y.z': rename all but one"),
        ("x`y.z", "1.0D as `x``y.z`, 2.0D as `X``y.z`", "the columns 'x`y.z' and 'X`y.z' have the same name to Spark"),
        ("s.a", f"{struct}, {struct}", "there are 2 columns named 's'"),
    ):
        with pytest.raises(DataError, match=words):
            model.copy({model.feature_columns: [name]}).transform(spark.sql(f"select {columns}"))
    assert "y__output" in model.transform(spark.sql("select 1.0D as `x``y.z`, 2 as other, 3 as Other")).columns


def test_decoders_are_those_of_the_training(tmp_path: Path) -> None:
    """Whichever row comes first: numbers of JSON, arrays of single precision that become doubles, and shapes."""

    def model(decoded: str, function: Any, floating: str) -> TorchModel:
        made = TorchModel(
            model=torch.nn.Identity(),
            inputs=[Field(("raw",), ("c0",), (2,), floating, (2,), decoded=(decoded,))],
            outputs=[2],
            label_types=["double"],
            feature_columns=["raw"],
            label_columns=["y"],
            decoders={"raw": function},
        )
        made.save(str(tmp_path / decoded))
        return TorchModel.load(str(tmp_path / decoded), decoders={"raw": function})

    numbers = model("(2,)float64", json.loads, "float32")
    assert numbers.predict({"raw": [b"[1,2]", b"[1.5,2]"]}).tolist() == [[1, 2], [1.5, 2]]
    single = model("(2,)float32", numpy.frombuffer, "float64")
    alone = single.predict({"raw": [numpy.array([0.1, 0.2]).tobytes()]})
    assert alone.tolist() == numpy.array([[0.1, 0.2]], numpy.float32).astype(float).tolist()
    with pytest.raises(DataError, match=r"returned an array of shape \[2, 1\] in row 0 of a batch of rows, and \[2\]"):
        model("(2,)int64", lambda text: numpy.array(json.loads(text))[:, None], "float32").predict({"raw": [b"[1,2]"]})


@pytest.mark.slow
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


def test_the_model_is_called_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.createDataFrame([(OUTPUTS[0], 1.0)], "x array<float>, label double")
    names = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
    classifier_of("double", 3, "logits", **names).transform(frame).explain()
    assert capsys.readouterr().out.count("ArrowEvalPython") == 1
