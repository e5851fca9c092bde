"""`TorchEstimator.fit` refuses what it cannot train on, and names the column, the row or the parameter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from tests.estimators.conftest import linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


class Adding(nn.Module):
    """Adds a column of whole numbers, [rows], to one of others, [rows, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, whole: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.factor * (whole + x)


class Locked(nn.Linear):
    """Has what cannot be sent."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.lock = threading.Lock()


def no_metric(output: torch.Tensor, label: torch.Tensor) -> float:
    raise ValueError(f"not with {list(output.shape)}")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"feature_cols": ["nothing"]}, "there is no column 'nothing': the DataFrame has 'x0', 'x1'"),
        ({"feature_cols": ["name"]}, "column 'name' has type string.*StringIndexer"),
        ({"feature_cols": ["hole"]}, "column 'hole' holds null in row 0"),
        ({"feature_cols": ["ragged"]}, "column 'ragged' has arrays of different lengths.*padding=0"),
        (
            {"feature_cols": ["features"], "padding": {"x0": 0}},
            "padding refers to 'x0', which isn't a feature or a label",
        ),
        (
            {"feature_cols": ["x0"], "padding": {"x0": 0}},
            r"padding refers to column 'x0' \(float\), which isn't an arr",
        ),
        ({"feature_cols": ["endless"]}, r"the loss of the first 100 rows is (inf|nan): column 'endless' contains inf"),
        (
            {"feature_cols": ["x0", "x1"]},
            "'x0', 'x1' have 2 values a row, and the model's first layer takes 3",
        ),
        ({"feature_cols": ["features"], "input_shapes": [[-1, 4]]}, "has 3 values per row, not 4"),
        ({"loss": nn.CrossEntropyLoss()}, "CrossEntropyLoss compares several outputs, one for each class.*'y' has one"),
        (
            {"loss": nn.CrossEntropyLoss(), "label_cols": ["class"], "model": nn.Linear(3, 2)},
            r"^column 'class' contains class 4, but the model's output has 2 classes, numbered from 0",
        ),
        ({"feature_cols": ["featrues"]}, "Did you mean 'features'"),
        ({"feature_cols": None}, "'name' has type string.*feature_cols is not set, so every column"),
        (
            {"metrics": [no_metric]},
            r"metric no_metric raised ValueError: not with \[100, 1\].*the labels \[100, 1\]",
        ),
        ({"metrics": [nn.L1Loss(reduction="none")]}, "(?s)the metric L1Loss returned tensor.*not one number"),
        ({"model": Locked()}, r"the model cannot be copied.*It is its attribute lock, <unlocked _thread.lock"),
        ({"validation": "y"}, r"validation='y': the column has type float\. It must be boolean"),
        ({"loss": lambda output, label: (output - label) ** 2}, r"the loss has the shape \[100, 1\]"),
        ({"feature_cols": ["whole", "x0"], "model": Adding()}, "it mixes rows"),
        (
            {"sample_weight_col": "w", "loss": lambda output, label: ((output - label) ** 2).mean()},
            "sample_weight_col needs the loss of each row",
        ),
    ],
)
def test_refused_before_any_rank_starts(line: DataFrame, estimator: Make, changed: dict[str, Any], words: str) -> None:
    from pyspark.sql import functions

    frame = line.select(
        "*",
        functions.lit("anna").alias("name"),
        functions.lit(None).cast("float").alias("hole"),
        functions.when(functions.col("held"), functions.array(functions.lit(1.0)))
        .otherwise(functions.array(functions.lit(1.0), functions.lit(2.0)))
        .alias("ragged"),
        functions.lit(float("inf")).alias("endless"),
        functions.lit(4).alias("class"),
        functions.lit(4).alias("whole"),
    )
    net = nn.Linear(1, 1) if changed.get("feature_cols") in (["hole"], ["endless"]) else linear()
    net = changed.get("model", net)
    parameters = {"optimizer": torch.optim.SGD(net.parameters(), 0.1), **changed, "model": net}
    with pytest.raises(DataError, match=words):
        estimator(**parameters).fit(frame)


def test_a_bad_variable_is_refused_before_spark_works(
    spark: SparkSession, estimator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(number: int) -> float:
        raise AssertionError("a row was read")

    from pyspark.sql import functions

    frame = spark.range(4).select(functions.udf(never, "double")("id").alias("x0"))
    monkeypatch.setenv("SPARK_ESTIMATOR_REPLACE_WITHIN", "soon")
    with pytest.raises(ValueError, match=r"SPARK_ESTIMATOR_REPLACE_WITHIN.*'soon'"):
        estimator(max_restarts=1).fit(frame)


def test_an_empty_frame(line: DataFrame, estimator: Make) -> None:
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        estimator().fit(line.limit(0))


@pytest.mark.slow
def test_a_bad_row_beyond_the_first_ones_is_named(spark: SparkSession, estimator: Make) -> None:
    rows = [([1.0, 2.0, 3.0], 1.0 if n != 180 else None) for n in range(200)]
    frame = spark.createDataFrame(rows, "features array<float>, y float")
    with pytest.raises(Exception, match="column 'y' holds null in row") as caught:
        estimator(num_proc=1).fit(frame)
    assert "df.dropna" in str(caught.value.__cause__ or caught.value)
    model = estimator(nulls="drop", epochs=1).fit(frame)
    assert len(model.getHistory()) == 1


@pytest.mark.slow
def test_a_class_beyond_the_first_rows_is_named(spark: SparkSession, estimator: Make) -> None:
    rows = [([1.0, 2.0, float(n)], 7 if n == 180 else n % 2) for n in range(200)]
    frame = spark.createDataFrame(rows, "features array<float>, y int")
    net = nn.Linear(3, 2)
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.ones(2))):
        with pytest.raises(Exception, match="column 'y' contains class 7, but the model's output has 2 classes"):
            estimator(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), loss=loss).fit(frame)
