"""The columns that Spark ML reads, against scikit-learn: its evaluators and OneVsRest, on outputs of each framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from sklearn import metrics
from torch import nn

from spark_estimator import TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators.inference.prediction_columns import get_output_kind
from tests.estimators.torch_models import classifier_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(240)
NAMES = {"prediction_col": "prediction", "raw_prediction_col": "rawPrediction", "probability_col": "probability"}
ROWS = 300
Numbers = numpy.ndarray[Any, Any]


def free_logits(classes: int, spread: float = 3.0) -> tuple[Numbers, Numbers]:
    """[rows, classes] logits with a number in common that has no meaning, and [rows] labels that follow them."""
    random = numpy.random.default_rng(3)
    logits = spread * random.standard_normal((ROWS, classes)) + 6 * random.standard_normal((ROWS, 1))
    labels = (logits + random.gumbel(size=logits.shape) * spread).argmax(1)
    return logits.astype(numpy.float32), labels


def softmax(logits: Numbers) -> Numbers:
    shares: Numbers = torch.softmax(torch.tensor(logits, dtype=torch.float64), 1).numpy()
    return shares


def sigmoid(logits: Numbers) -> Numbers:
    shares: Numbers = torch.sigmoid(torch.tensor(logits, dtype=torch.float64)).numpy()
    return shares


def frame_of(spark: SparkSession, outputs: Numbers, labels: Numbers) -> DataFrame:
    rows = [(output, float(label)) for output, label in zip(outputs.tolist(), labels, strict=True)]
    return spark.createDataFrame(rows, "x array<float>, label double").coalesce(1)


def area_under_pr(labels: Numbers, scores: Numbers) -> float:
    """As Spark has it: straight lines between the points, and a first point as precise as the second."""
    precision, recall, _ = metrics.precision_recall_curve(labels, scores)
    precision[-1] = precision[-2]
    return float(metrics.auc(recall, precision))


def assert_evaluates_as_sklearn(predicted: DataFrame, labels: Numbers, probabilities: Numbers) -> None:
    """Compares what Spark's evaluators make of two classes.

    Args:
        probabilities: [rows, 2], of doubles.
    """
    from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator

    kept = predicted.select("label", *NAMES.values()).cache()
    by_spark = {name: BinaryClassificationEvaluator(metricName=name).evaluate(kept) for name in RIGHT_OF_TWO} | {
        name: MulticlassClassificationEvaluator(metricName=name).evaluate(kept) for name in RIGHT
    }
    by_probability = BinaryClassificationEvaluator(rawPredictionCol="probability").evaluate(kept)
    kept.unpersist()
    right = {name: function(labels, probabilities[:, 1]) for name, function in RIGHT_OF_TWO.items()} | {
        name: function(labels, probabilities) for name, function in RIGHT.items()
    }
    assert by_spark == pytest.approx(right, rel=1e-6)
    assert by_probability == pytest.approx(right["areaUnderROC"], rel=1e-6)


RIGHT_OF_TWO: dict[str, Callable[..., float]] = {
    "areaUnderROC": metrics.roc_auc_score,
    "areaUnderPR": area_under_pr,
}
RIGHT: dict[str, Callable[..., float]] = {
    "logLoss": metrics.log_loss,
    "accuracy": lambda labels, shares: metrics.accuracy_score(labels, shares.argmax(1)),
    "f1": lambda labels, shares: metrics.f1_score(labels, shares.argmax(1), average="weighted"),
}


@pytest.mark.parametrize(
    ("loss", "outputs_of"),
    [
        (nn.CrossEntropyLoss(), lambda logits: logits),
        (nn.NLLLoss(), lambda logits: nn.functional.log_softmax(torch.tensor(logits), 1).numpy()),
        (nn.BCEWithLogitsLoss(), lambda logits: logits[:, 1:] - logits[:, :1]),
        (nn.BCELoss(), lambda logits: sigmoid(logits[:, 1:] - logits[:, :1])),
        (
            functools.partial(nn.functional.binary_cross_entropy_with_logits, reduction="mean"),
            lambda logits: logits[:, 1:] - logits[:, :1],
        ),
    ],
    ids=["CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "BCELoss", "partial"],
)
def test_two_classes(spark: SparkSession, loss: Any, outputs_of: Callable[[Numbers], Numbers]) -> None:
    logits, labels = free_logits(2)
    outputs = outputs_of(logits)
    model = classifier_of("double", outputs.shape[1], get_output_kind(loss), **NAMES)
    right = softmax(logits)
    assert metrics.roc_auc_score(labels, logits[:, 1]) < metrics.roc_auc_score(labels, right[:, 1]) - 0.03
    assert_evaluates_as_sklearn(model.transform(frame_of(spark, outputs, labels)), labels, right)


@pytest.mark.parametrize(
    "loss", ["BinaryCrossentropy", "bce", "BinaryCrossentropy from logits", "softmax", "logits", "two sigmoids"]
)
def test_two_classes_of_keras(spark: SparkSession, loss: str) -> None:
    keras = pytest.importorskip("keras")
    from spark_estimator import KerasModel
    from spark_estimator.estimators.keras.parts import get_output_kind as kind_of_keras

    logits, labels = free_logits(2)
    losses = keras.losses
    chosen, activation, outputs = {
        "BinaryCrossentropy": (losses.BinaryCrossentropy(), "sigmoid", logits[:, 1:] - logits[:, :1]),
        "bce": ("bce", "sigmoid", logits[:, 1:] - logits[:, :1]),
        "BinaryCrossentropy from logits": (losses.BinaryCrossentropy(True), None, logits[:, 1:] - logits[:, :1]),
        "softmax": (losses.SparseCategoricalCrossentropy(), "softmax", logits),
        "logits": (losses.SparseCategoricalCrossentropy(from_logits=True), None, logits),
        "two sigmoids": ("sparse_categorical_crossentropy", "sigmoid", logits),
    }[loss]
    right = softmax(logits)
    if loss == "two sigmoids":  # the loss divides them by their sum
        right = sigmoid(logits)
        right /= right.sum(1, keepdims=True)
    width = outputs.shape[1]
    model = KerasModel(
        model=keras.Sequential([keras.layers.Input((width,)), keras.layers.Activation(activation)]),
        inputs=[Field(("x",), ("c0",), (width,), "float32", (width,))],
        outputs=[width],
        label_types=["double"],
        output_kinds=[kind_of_keras(chosen)],
        feature_columns=["x"],
        label_columns=["label"],
        **NAMES,
    )
    assert_evaluates_as_sklearn(model.transform(frame_of(spark, outputs, labels)), labels, right)


def test_scores_of_an_unknown_loss(spark: SparkSession) -> None:
    """Of a LightningModule, or of MultiMarginLoss: the class with the larger score is the more likely one."""
    from pyspark.ml.evaluation import BinaryClassificationEvaluator

    scores, labels = free_logits(2)
    model = classifier_of("double", 2, get_output_kind(nn.MultiMarginLoss()), raw_prediction_col="rawPrediction")
    metric = BinaryClassificationEvaluator().evaluate(model.transform(frame_of(spark, scores, labels)))
    assert metric == pytest.approx(metrics.roc_auc_score(labels, scores[:, 1].astype(float) - scores[:, 0]))


def test_several_classes(spark: SparkSession) -> None:
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    logits, labels = free_logits(4)
    predicted = classifier_of("double", 4, "logits", **NAMES).transform(frame_of(spark, logits, labels)).cache()
    right = softmax(logits)
    for name, function in RIGHT.items():
        metric = MulticlassClassificationEvaluator(metricName=name).evaluate(predicted)
        assert metric == pytest.approx(function(labels, right), rel=1e-6)
    raw = numpy.array([row[0].toArray() for row in predicted.select("rawPrediction").collect()])
    predicted.unpersist()
    assert numpy.allclose(softmax(raw), right) and numpy.allclose(raw.sum(1), 0, atol=1e-9)


def test_one_vs_rest_compares_scores_of_its_models(spark: SparkSession) -> None:
    """What the two logits of each model have in common has no meaning for its class."""
    from pyspark.ml.classification import OneVsRestModel

    logits, labels = free_logits(3)
    common = 10 * numpy.random.default_rng(4).standard_normal((ROWS, 3))
    pairs = numpy.stack([common - logits / 2, common + logits / 2], 2).reshape(ROWS, 6)
    models: list[Any] = []
    for index in range(3):
        net = nn.Linear(6, 2, bias=False)
        net.weight.data = torch.eye(6)[2 * index : 2 * index + 2]
        models.append(
            TorchModel(
                model=net,
                inputs=[Field(("x",), ("c0",), (6,), "float32", (6,))],
                outputs=[2],
                label_types=["double"],
                output_kinds=["logits"],
                feature_columns=["x"],
                label_columns=["label"],
                raw_prediction_col="rawPrediction",
            )
        )
    rows = OneVsRestModel(models=models).transform(frame_of(spark, pairs, labels)).collect()
    assert [row.prediction for row in rows] == logits.argmax(1).tolist()


@pytest.mark.parametrize("kind", ["tinyint", "int", "bigint", "boolean", "decimal(10,0)", "decimal(5,2)"])
def test_a_regression_on_whole_numbers(spark: SparkSession, kind: str) -> None:
    """`label__output` is not rounded, so that its error is the model's."""
    from pyspark.ml.evaluation import RegressionEvaluator

    random = numpy.random.default_rng(5)
    outputs = (random.standard_normal((ROWS, 1)) * 3).astype(numpy.float32)
    labels = numpy.rint(outputs.reshape(-1) + random.standard_normal(ROWS))
    predicted = classifier_of(kind, 1, get_output_kind(nn.MSELoss())).transform(frame_of(spark, outputs, labels))
    metric = RegressionEvaluator(predictionCol="label__output").evaluate(predicted)
    assert metric == pytest.approx(metrics.root_mean_squared_error(labels, outputs.astype(float)), rel=1e-6)
