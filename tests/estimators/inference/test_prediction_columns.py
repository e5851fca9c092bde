"""The columns that `transform` adds: in the label's type, and as Spark ML's evaluators read them."""

from __future__ import annotations

import datetime
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators.inference.prediction_columns import (
    THRESHOLDS,
    PredictionColumn,
    Role,
    choose_label_kind,
    get_output_kind,
)
from tests.estimators.conftest import linear
from tests.estimators.torch_models import FEATURES, OUTPUTS, classifier_of, model_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(
    ("kind", "outputs", "output_type", "spark_type"),
    [
        ("int", 1, "label", "double"),
        ("bigint", 4, "label", "vector"),
        ("array<int>", 1, "label", "array<double>"),
        ("float", 4, "array", "array<float>"),
        ("array<double>", 1, "label", "array<double>"),
        pytest.param("float", 1, "label", "float", marks=pytest.mark.slow),
        pytest.param("vector", 1, "label", "vector", marks=pytest.mark.slow),
        pytest.param("int", 1, "array", "array<float>", marks=pytest.mark.slow),
        pytest.param("float", 1, "vector", "vector", marks=pytest.mark.slow),
    ],
)
def test_types_of_outputs(line: DataFrame, kind: str, outputs: int, output_type: str, spark_type: str) -> None:
    frame = model_of(nn.Linear(3, outputs), outputs, kind, output_type=output_type).transform(line.limit(2))
    assert frame.schema["y__output"].dataType.simpleString() == spark_type
    assert all(row.y__output is not None for row in frame.collect())


@pytest.mark.parametrize("kind", ["boolean", "tinyint", "smallint", "int", "bigint", "decimal(5,2)", "decimal(9,0)"])
def test_only_classes_are_rounded(kind: str) -> None:
    """A loss of two classes makes one of an output, in the label's type; other outputs stay as they are."""
    assert choose_label_kind(1, kind, "label", None) == choose_label_kind(1, kind, "label", "logits") == "double"
    of_classes = "double" if kind.startswith("decimal") else kind
    for output_kind in THRESHOLDS:
        assert choose_label_kind(1, kind, "label", output_kind) == of_classes
        assert choose_label_kind(1, f"array<{kind}>", "label", output_kind) == f"array<{of_classes}>"
    for other in ("float", "double", "date", "timestamp", "vector", "array<float>"):
        assert choose_label_kind(1, other, "label", None) == other


def test_outputs_for_whole_numbers_are_those_of_the_model(line: DataFrame) -> None:
    """In Spark, in a pandas frame as MLflow's models have it, and without Spark."""
    model = model_of(linear(), kind="int")
    frame = model.transform(line.limit(50)).toPandas()
    features = numpy.stack(frame["features"]).astype(numpy.float32)
    right = linear()(torch.tensor(features)).detach().numpy().reshape(-1)
    assert frame["y__output"].to_numpy() == pytest.approx(right, rel=1e-6)
    assert frame["y__output"].tolist() == model._make_frame_predictor().predict_frame(frame)["y__output"].tolist()
    assert frame["y__output"].tolist() == model.predict(features).reshape(-1).tolist()


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), [nn.BCEWithLogitsLoss()], None])
def test_a_model_made_by_hand_may_say_its_loss(spark: SparkSession, tmp_path: Path, loss: Any) -> None:
    """As one of Horovod's does; also when it was saved."""
    frame = spark.createDataFrame([(0.3, 1), (1.7, 1), (-0.2, 0)], "x float, y int").coalesce(1)
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(1.0)
    model = TorchModel(model=net, feature_columns=["x"], label_columns=["y"], loss=loss)
    model.save(str(tmp_path / "model"))
    for each in (model, TorchModel.load(str(tmp_path / "model"))):
        predicted = [row.y__output for row in each.transform(frame).collect()]
        assert predicted == (pytest.approx([0.3, 1.7, -0.2]) if loss is None else [1, 1, 0])


@pytest.mark.parametrize(
    ("kind", "output_type", "right"),
    [
        ("float", "label", [1.0, None, float("nan"), float("inf")]),
        ("int", "label", [1.0, None, float("nan"), float("inf")]),
        ("int of two", "label", [1, None, None, 1]),
        ("boolean of two", "label", [True, None, None, True]),
        ("decimal(5,2)", "label", [1.0, None, float("nan"), float("inf")]),
        ("date", "label", [datetime.date(1970, 1, 2), None, None, None]),
        ("array<int> of two", "label", [[1], None, [None], [1]]),
        ("int", "array", [[1.0], None, [float("nan")], [float("inf")]]),
    ],
)
def test_an_output_that_its_type_has_not(spark: SparkSession, kind: str, output_type: str, right: list[Any]) -> None:
    """Neither a wrong number nor a failed job: null."""
    net = nn.Linear(3, 1, bias=False)
    net.weight.data.fill_(0.6)
    frame = spark.createDataFrame(
        [([value, 0.0, 0.0] if value is not None else None,) for value in (1.0, None, float("nan"), float("inf"))],
        "features array<float>",
    ).coalesce(1)
    kind, _, of_two = kind.partition(" of ")
    model = TorchModel(
        model=net,
        inputs=[FEATURES],
        outputs=[1],
        label_types=[kind],
        output_kinds=["probability" if of_two else None],
        output_type=output_type,
        feature_columns=["features"],
        label_columns=["y"],
    )
    predicted = [row.y__output for row in model.transform(frame).collect()]
    if not of_two and kind != "date":
        right[0] = pytest.approx(0.6 if output_type == "label" else [0.6])
    assert repr(predicted[1:]) == repr(right[1:])
    assert predicted[0] == right[0]


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
        output_kinds=["logit"],
        feature_columns=["features"],
        label_columns=["y"],
    )
    assert [row.y__output for row in model.transform(frame).collect()] == right


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        ("boolean", 0.75, 0.75),
        ("tinyint", 200.5, 200.5),
        ("date", 1.2, datetime.date(1970, 1, 2)),
        ("timestamp", 1.7e9 + 0.25, datetime.datetime.fromtimestamp(1.7e9 + 0.25)),
        ("timestamp_ntz", 253402214400.0, datetime.datetime(9999, 12, 31)),
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


def test_what_evaluators_read(spark: SparkSession) -> None:
    """Classes: the number of the largest output, the outputs less their mean, their softmax. Null where a feature is
    null."""
    frame = spark.createDataFrame(
        [(row, float(n % 3)) for n, row in enumerate(OUTPUTS)], "x array<float>, label double"
    )
    wide = classifier_of("double", 3, "logits", prediction_col="p", raw_prediction_col="raw", probability_col="prob")
    rows = wide.transform(frame.union(spark.createDataFrame([(None, 0.0)], frame.schema))).collect()
    assert [row.p for row in rows] == [0.0, 1.0, 2.0, None]
    centered = [[value - sum(row) / 3 for value in row] for row in OUTPUTS]
    assert [row.raw and row.raw.toArray().tolist() for row in rows] == [*map(pytest.approx, centered), None]
    right = torch.softmax(torch.tensor(OUTPUTS), 1).numpy()
    assert numpy.allclose([row.prob.toArray() for row in rows[:3]], right, atol=1e-6)
    assert rows[3].prob is None

    narrow = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
    single = spark.createDataFrame([([-2.0], 0), ([0.25], 1), ([math.nan], 1)], "x array<float>, label int")
    logit = classifier_of("int", 1, "logit", **narrow).transform(single).collect()
    assert [(row.p, row.label__output) for row in logit] == [(0.0, 0), (1.0, 1), (None, None)]
    assert logit[0].raw.toArray().tolist() == [2.0, -2.0]
    assert logit[0].prob[1] == pytest.approx(1 / (1 + math.exp(2)))
    share = classifier_of("int", 1, "probability", **narrow).transform(single).collect()
    assert [row.p for row in share[:2]] == [0.0, 0.0]
    assert share[1].prob.toArray().tolist() == [0.75, 0.25]
    number = classifier_of("int", 1, None, prediction_col="p").transform(single).collect()
    assert [(row.p, row.label__output) for row in number[:2]] == [(-2.0, -2.0), (0.25, 0.25)]


def test_an_output_with_nan_is_no_class(spark: SparkSession) -> None:
    """Neither in transform nor in a pandas frame."""
    outputs = [[0.1, 0.9], [math.nan, 0.5], [0.5, math.nan], [math.nan, math.nan]]
    frame = spark.createDataFrame([(row,) for row in outputs], "x array<float>").coalesce(1)
    model = classifier_of("double", 2, "logits", prediction_col="p", probability_col="prob")
    assert [row.p for row in model.transform(frame).collect()] == [1.0, None, None, None]
    predicted = model._make_frame_predictor().predict_frame({"x": outputs})["p"]
    assert predicted.tolist()[:1] == [1.0] and predicted.isna().tolist() == [False, True, True, True]

    texts = PredictionColumn("c", 0, 2, Role.LABEL, "string", "logits", ("good", "bad"))
    assert texts.make_values(numpy.array(outputs)).to_pylist() == ["bad", None, None, None]


@pytest.mark.parametrize(
    ("output_kind", "output", "raw", "probabilities"),
    [
        ("logits", [math.inf, 0.0], [5e299, -5e299], [1.0, 0.0]),
        ("logits", [1e300, 1e300], [0.0, 0.0], [0.5, 0.5]),
        ("log_probabilities", [0.0, -math.inf], [5e299, -5e299], [1.0, 0.0]),
        ("log_probabilities", [0.0, -40.0], [20.0, -20.0], [1.0, math.exp(-40)]),
        ("logits", [math.nan, 0.0], None, None),
        ("logit", [math.nan], None, None),
        ("logit", [math.inf], [-1e300, 1e300], [0.0, 1.0]),
        ("logit", [36.0], [-36.0, 36.0], [math.exp(-36), 1.0]),
        ("probability", [0.25], [0.75, 0.25], [0.75, 0.25]),
        ("probabilities", [0.25, 0.25], [0.5, 0.5], [0.5, 0.5]),
        ("probabilities", [-1.0, 0.5], [0.0, 1.0], [0.0, 1.0]),
        ("probabilities", [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]),
    ],
)
def test_scores_at_the_limits(
    output_kind: str, output: list[float], raw: list[float] | None, probabilities: list[float] | None
) -> None:
    """What has no difference or no sum; a row with NaN is null, as evaluators would rank it first."""
    outputs = numpy.array([output, [0.5] * len(output)], numpy.float32 if max(output) < 1e38 else numpy.float64)
    for role, right in ((Role.RAW, raw), (Role.PROBABILITY, probabilities)):
        vector, other = (
            PredictionColumn("c", 0, len(output), role, "vector", output_kind).make_values(outputs).to_pylist()
        )
        assert vector == (right if right is None else pytest.approx(right, rel=1e-12, abs=1e-300)), role
        assert other is not None


def test_several_labels_of_two_classes_each_are_left_alone() -> None:
    """Their scores have nothing to do with each other."""
    outputs = numpy.array([[2.0, -1.0], [3.0, 5.0]], numpy.float32)
    for output_kind in THRESHOLDS:
        column = PredictionColumn("c", 0, 2, Role.RAW, "vector", output_kind)
        assert column.make_values(outputs).to_pylist() == outputs.tolist()


class ByRow(TorchModel):
    def get_prediction_fn(self) -> Any:
        return lambda model, row: model(torch.tensor(row.x).reshape(1, -1))


def test_row_by_row_the_same_numbers(spark: SparkSession) -> None:
    """As of a batch, and in a pandas frame; a row with NaN has no class and no scores."""
    rows = [(row,) for row in ([2.0, -1.0], [0.5, 8.0], [math.nan, 1.0])]
    frame = spark.createDataFrame(rows, "x array<float>").coalesce(1)
    names = {"prediction_col": "p", "raw_prediction_col": "raw", "probability_col": "prob"}
    batches = classifier_of("double", 2, "logits", **names)
    by_row = ByRow(model=nn.Identity(), _metadata=batches._known, label_columns=["label"], **names)
    predicted = batches.transform(frame).collect()
    assert repr(by_row.transform(frame).collect()) == repr(predicted)  # NaN is not equal to itself
    assert [row.raw and row.raw.toArray().tolist() for row in predicted] == [[1.5, -1.5], [-3.75, 3.75], None]
    of_pandas = batches._make_frame_predictor().predict_frame({"x": [row for (row,) in rows]})
    for name in ("raw", "prob"):
        assert of_pandas[name].tolist() == [row[name] and row[name].toArray().tolist() for row in predicted]


def test_a_partial_of_a_loss_is_one_of_its_kind() -> None:
    partial = functools.partial(nn.functional.binary_cross_entropy_with_logits, pos_weight=torch.tensor(3.0))
    assert get_output_kind(partial) == "logit"
    assert get_output_kind(functools.partial(nn.functional.mse_loss)) is None


def test_a_subclass_of_a_loss_is_of_its_kind_unless_it_computes_another() -> None:
    class Weighted(nn.BCEWithLogitsLoss):
        def __init__(self) -> None:
            super().__init__(pos_weight=torch.tensor(3.0))

    class Own(Weighted):
        def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return (input - target).square().mean()

    assert [get_output_kind(loss) for loss in (Weighted(), Own(), nn.Identity())] == ["logit", None, None]


def test_losses_of_a_cell_that_has_no_name() -> None:
    """Livy's: what they define is of no module."""
    cell: dict[str, Any] = {"nn": nn}
    exec("def loss(x, y): ...\nclass Own(nn.Module):\n    def forward(self, x, y): ...", cell)
    assert [get_output_kind(loss) for loss in (cell["loss"], cell["Own"]())] == [None, None]


def test_evaluators(spark: SparkSession) -> None:
    from pyspark.ml.evaluation import (
        BinaryClassificationEvaluator,
        MulticlassClassificationEvaluator,
        RegressionEvaluator,
    )

    binary = spark.createDataFrame([([-2.0], 0.0), ([0.2], 1.0), ([-0.1], 0.0)], "x array<float>, label double")
    names = {"prediction_col": "prediction", "raw_prediction_col": "rawPrediction", "probability_col": "probability"}
    predicted = classifier_of("double", 1, "logit", **names).transform(binary)
    assert BinaryClassificationEvaluator().evaluate(predicted) == 1.0
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(predicted) < 0.5
    regression = classifier_of("double", 1, None, prediction_col="prediction").transform(binary)
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
    kind, width, output_kind, parameters = model
    with pytest.raises((ValueError, DataError), match=words):
        classifier_of(kind, width, output_kind, **parameters).transform(frame)
