"""The estimator among Spark ML's own: pipelines, grids, folds, and evaluators that read its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)
OUTPUTS = [[2.0, -1.0, 0.5], [0.0, 3.0, 0.0], [-4.0, -4.0, 1.0]]


@pytest.fixture(scope="module")
def flowers(spark: SparkSession) -> DataFrame:
    """Two numbers a, b and a text: which of them is larger."""
    numbers = numpy.random.default_rng(2).standard_normal((90, 2))
    rows = [(float(a), float(b), "a" if a > b else "b") for a, b in numbers]
    return spark.createDataFrame(rows, "a double, b double, kind string").cache()


def model_of(kind: str, width: int, meaning: str | None, **given: Any) -> TorchModel:
    field = Field(("x",), ("c0",), (width,), "float32", (width,))
    return TorchModel(
        model=nn.Identity(),
        inputs=[field],
        outputs=[width],
        label_types=[kind],
        meanings=[meaning],
        feature_columns=["x"],
        label_columns=["label"],
        **given,
    )


@pytest.mark.timeout(600)
def test_folds_over_a_pipeline(flowers: DataFrame, estimator: Make, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit

    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), "bias": torch.zeros(2)})  # always wrong
    made = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-9),
        loss=nn.CrossEntropyLoss(),
        feature_cols=["assembled"],
        label_cols=["label"],
        prediction_col="prediction",
        num_proc=1,
        epochs=6,
    )
    stages = [
        StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc"),
        VectorAssembler(inputCols=["a", "b"], outputCol="assembled"),
        made,
    ]
    grid = ParamGridBuilder().addGrid(made.learning_rate, [1e-9, 0.5]).build()  # type: ignore[attr-defined]
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    given = {"estimator": Pipeline(stages=stages), "evaluator": evaluator, "seed": 4}
    split = TrainValidationSplit(trainRatio=0.7, estimatorParamMaps=grid, **given).fit(flowers)
    assert split.validationMetrics[0] == 0.0
    assert split.validationMetrics[1] > 0.8
    found = CrossValidator(numFolds=3, estimatorParamMaps=grid[1:], **given).fit(flowers)
    assert found.avgMetrics[0] > 0.8
    found.write().overwrite().save(str(tmp_path / "tuned"))
    loaded = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert evaluator.evaluate(loaded.transform(flowers)) == evaluator.evaluate(found.transform(flowers)) > 0.8
    assert [list(one.values()) for one in loaded.getEstimatorParamMaps()] == [[0.5]]


def test_what_evaluators_read(spark: SparkSession) -> None:
    """Classes: the number of the largest output, the outputs, their softmax. Null where a feature is null."""
    frame = spark.createDataFrame(
        [(row, float(n % 3)) for n, row in enumerate(OUTPUTS)], "x array<float>, label double"
    )
    wide = model_of("double", 3, "logits", prediction_col="p", raw_prediction_col="raw", probability_col="prob")
    rows = wide.transform(frame.union(spark.createDataFrame([(None, 0.0)], frame.schema))).collect()
    assert [row.p for row in rows] == [0.0, 1.0, 2.0, None]
    assert [row.raw and row.raw.toArray().tolist() for row in rows] == [*OUTPUTS, None]
    right = torch.softmax(torch.tensor(OUTPUTS), 1).numpy()
    assert numpy.allclose([row.prob.toArray() for row in rows[:3]], right, atol=1e-6)
    assert rows[3].prob is None

    narrow = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
    single = spark.createDataFrame([([-2.0], 0), ([0.25], 1), ([math.nan], 1)], "x array<float>, label int")
    logit = model_of("int", 1, "logit", **narrow).transform(single).collect()
    assert [(row.p, row.label__output) for row in logit] == [(0.0, 0), (1.0, 1), (None, None)]
    assert logit[0].raw.toArray().tolist() == [2.0, -2.0]
    assert logit[0].prob[1] == pytest.approx(1 / (1 + math.exp(2)))
    share = model_of("int", 1, "probability", **narrow).transform(single).collect()
    assert [row.p for row in share[:2]] == [0.0, 0.0]
    assert share[1].prob.toArray().tolist() == [0.75, 0.25]
    number = model_of("int", 1, None, prediction_col="p").transform(single).collect()
    assert [(row.p, row.label__output) for row in number[:2]] == [(-2.0, -2), (0.25, 0)]


def test_evaluators(spark: SparkSession) -> None:
    from pyspark.ml.evaluation import (
        BinaryClassificationEvaluator,
        MulticlassClassificationEvaluator,
        RegressionEvaluator,
    )

    binary = spark.createDataFrame([([-2.0], 0.0), ([0.2], 1.0), ([-0.1], 0.0)], "x array<float>, label double")
    names = {"prediction_col": "prediction", "raw_prediction_col": "rawPrediction", "probability_col": "probability"}
    predicted = model_of("double", 1, "logit", **names).transform(binary)
    assert BinaryClassificationEvaluator().evaluate(predicted) == 1.0
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(predicted) < 0.5
    regression = model_of("double", 1, None, prediction_col="prediction").transform(binary)
    assert RegressionEvaluator(metricName="mae").evaluate(regression) == pytest.approx((2 + 0.8 + 0.1) / 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (("array<float>", 3, None, {"prediction_col": "p"}), "prediction_col is one number a row; the model returns 3"),
        (("float", 1, None, {"raw_prediction_col": "p"}), "raw_prediction_col is for classes"),
        (("float", 3, None, {"probability_col": "p"}), "probability_col is for classes"),
        (("float", 3, None, {"prediction_col": "LABEL"}), "has a column 'LABEL' already"),
        (("float", 3, None, {"prediction_col": "label__output"}), "would be named 'label__output'"),
    ],
)
def test_columns_that_cannot_be_had(spark: SparkSession, model: Any, words: str) -> None:
    frame = spark.createDataFrame([(OUTPUTS[0], 1.0)], "x array<float>, label double")
    kind, width, meaning, given = model
    with pytest.raises((ValueError, DataError), match=words):
        model_of(kind, width, meaning, **given).transform(frame)


def test_the_model_is_called_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.createDataFrame([(OUTPUTS[0], 1.0)], "x array<float>, label double")
    names = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
    model_of("double", 3, "logits", **names).transform(frame).explain()
    assert capsys.readouterr().out.count("ArrowEvalPython") == 1
