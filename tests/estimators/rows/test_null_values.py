"""Means and medians that replace nulls, by Spark and from files, and the model that keeps them."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.rows.null_values import measure_files, measure_frame
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.sampling import Columns, sample_files, sample_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = "age int, income double, area decimal(8,2), tags array<float>, day date, city string, held boolean, y float"
INFINITE = {30: math.inf, 31: -math.inf, 100: math.inf}
ROWS: list[tuple[Any, ...]] = [
    (
        None if number % 5 == 0 else number % 17,
        None if number % 7 == 0 else float("nan") if number % 7 == 1 else INFINITE.get(number, number**1.5),
        None,
        [1.0, 2.0],
        None,
        "a",
        number % 4 == 0,
        None if number == 9 else 0.5,
    )
    for number in range(200)
]
FEATURES = ["age", "income"]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, KINDS).repartition(3)


def request_of(nulls: Any, features: list[str] = FEATURES, marker: str | None = None, **changed: Any) -> RowRequest:
    estimator = TorchEstimator(feature_cols=features, label_cols=["y"], nulls=nulls, **changed)
    return RowRequest.from_parameters(estimator._value, marker)


def values_of(frame: DataFrame, tmp_path: Path, request: RowRequest) -> dict[str, float]:
    """The numbers by Spark, which are those of files but for the last digits."""
    columns = measure_frame(frame, sample_frame(frame, request).columns)
    frame.write.parquet(f"{tmp_path}/rows")
    files = find_files(f"{tmp_path}/rows")
    of_files = measure_files(files, sample_files(files, request).columns)
    assert columns.encoder.nulls == {**columns.null_values, **_others(request)}
    assert of_files.null_values == pytest.approx(columns.null_values, rel=1e-12)
    return dict(columns.null_values)


def _others(request: RowRequest) -> dict[str, Any]:
    nulls = request.nulls if isinstance(request.nulls, dict) else {}
    return {name: policy for name, policy in nulls.items() if policy not in ("mean", "median")}


def known(place: int, *, all_rows: bool = True) -> list[float]:
    rows = [row for row in ROWS if all_rows or not row[6]]
    return [float(row[place]) for row in rows if row[place] is not None and math.isfinite(row[place])]


def test_the_mean_of_all_columns_of_numbers(frame: DataFrame, tmp_path: Path) -> None:
    values = values_of(frame, tmp_path, request_of("mean", [*FEATURES, "tags", "day"]))
    assert values == {"age": round(statistics.fmean(known(0))), "income": pytest.approx(statistics.fmean(known(1)))}


def test_each_column_has_its_own(frame: DataFrame, tmp_path: Path) -> None:
    request = request_of({"age": "mean", "income": "median", "y": "drop"}, marker="held")
    values = values_of(frame, tmp_path, request)
    kept = [row for row in ROWS if not row[6] and row[7] is not None]
    ages = [row[0] for row in kept if row[0] is not None]
    incomes = [row[1] for row in kept if row[1] is not None and math.isfinite(row[1])]
    assert values == {"age": round(statistics.fmean(ages)), "income": pytest.approx(statistics.median(incomes))}


@pytest.mark.parametrize(
    ("nulls", "features", "words"),
    [
        ({"y": "mean"}, FEATURES, "nulls='mean' isn't valid for 'y', which is no feature: 'drop' leaves its rows out"),
        ({"day": "median"}, ["day"], r"nulls='median' isn't valid for column 'day' \(date\)"),
        ({"tags": "mean"}, ["tags"], r"isn't valid for column 'tags' \(array<float>\): it is for columns of numbers"),
        ("mean", ["area"], "column 'area' has no mean: it holds no finite number in the rows to train on"),
    ],
)
def test_what_has_no_statistic_is_refused(frame: DataFrame, nulls: Any, features: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        measure_frame(frame, sample_frame(frame, request_of(nulls, features)).columns)


def test_a_sum_beyond_the_largest_double_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1e308, 0.5), (1e308, 0.5), (None, 0.5)], "income double, y float")
    with pytest.raises(DataError, match="'income' has no mean: the sum of its values is inf"):
        measure_frame(frame, sample_frame(frame, request_of("mean", ["income"])).columns)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_whole_numbers_that_no_double_has(statistic: str, tmp_path: Path) -> None:
    readable = Readable("age", False, "int64", None, "bigint")
    columns = Columns((readable,), (), None, None, (), RowEncoder(("age",)), statistics={"age": statistic})
    for value, rounded in (((1 << 60) + 1, 1 << 60), ((1 << 63) - 1, (1 << 63) - 1024)):
        pyarrow.parquet.write_table(pyarrow.table({"age": [value, None]}), tmp_path / "rows.parquet")
        measured = measure_files(find_files(str(tmp_path / "rows.parquet")), columns)
        assert measured.null_values == {"age": rounded}


def test_not_with_a_transformation(frame: DataFrame) -> None:
    request = request_of("mean", transformation_fn=lambda rows: rows)
    with pytest.raises(DataError, match="'median' can't be combined with transformation_fn"):
        sample_frame(frame, request)


def model(**parameters: Any) -> TorchModel:
    """Adds up two columns."""
    net = nn.Linear(2, 1)
    net.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    return TorchModel(
        model=net,
        inputs=[Field(("age", "income"), ("c0", "c1"), (1, 1), "float32", (2,))],
        outputs=[1],
        label_types=["float"],
        label_columns=["y"],
        **parameters,
    )


def test_predictions_replace_nulls_too(spark: SparkSession, tmp_path: Path) -> None:
    made = model(null_values={"age": 10.0})
    made.save(str(tmp_path / "saved"))
    loaded = TorchModel.load(str(tmp_path / "saved"))
    assert loaded.getNullValues() == {"age": 10.0}
    rows = [(1, 2.0), (None, 2.0), (1, None)]
    frame = spark.createDataFrame(rows, "years int, income double")
    renamed = loaded.setFeatureColumns(["years", "income"])
    assert [row.y__output for row in renamed.transform(frame).collect()] == [3.0, 12.0, None]
    predicted = renamed._make_frame_predictor().predict_frame(pandas.DataFrame(rows, columns=["years", "income"]))
    assert predicted["y__output"].tolist()[:2] == [3.0, 12.0] and predicted["y__output"].isna().tolist()[2]
    features = {"years": [1, None], "income": [2.0, 2.0]}
    assert numpy.array_equal(renamed.predict(features), [[3.0], [12.0]])
    assert renamed.get_prediction_fn()(renamed.getModel(), {"years": None, "income": 2.0}) == 12.0


def test_nan_is_null_to_transform_and_predict(spark: SparkSession) -> None:
    """In a pandas frame the two are the same."""
    nan = float("nan")
    made = model(null_values={"age": 10.0, "income": 0.5})
    rows = [(1, 2.0), (None, nan), (3, None), (None, 4.0)]
    expected = [3.0, 10.5, 3.5, 14.0]
    frame = spark.createDataFrame(rows, "age int, income double").coalesce(1)
    assert [row.y__output for row in made.transform(frame).collect()] == expected
    for pandas_frame in (
        pandas.DataFrame(rows, columns=["age", "income"]),
        pandas.DataFrame(rows, columns=["age", "income"]).astype({"age": "Int64"}),
        frame.toPandas(),
        pandas.DataFrame({"age": [1, None, 3, None], "income": [2.0, None, None, 4.0]}, dtype=object),
    ):
        assert made.predict(pandas_frame).ravel().tolist() == expected
        assert made._make_frame_predictor().predict_frame(pandas_frame)["y__output"].tolist() == expected
    array = numpy.array([[1.0, 2.0], [nan, nan], [3.0, nan], [nan, 4.0]])
    assert made.predict(array).ravel().tolist() == expected and numpy.isnan(array).sum() == 4


def test_an_integer_column_of_a_pandas_frame() -> None:
    whole = TorchModel(
        model=nn.Identity(),
        inputs=[Field(("n",), ("c0",), (1,), "int64", (1,))],
        outputs=[1],
        label_types=["bigint"],
        label_columns=["y"],
        feature_columns=["n"],
        null_values={"n": 7.0},
    )
    assert whole.predict(pandas.DataFrame({"n": [1.0, numpy.nan]})).ravel().tolist() == [1, 7]
    assert whole.predict(numpy.array([1.0, numpy.nan])).ravel().tolist() == [1, 7]
    with pytest.raises(DataError, match="whole numbers in the first rows"):
        whole.predict(pandas.DataFrame({"n": [1.5, numpy.nan]}))


@pytest.mark.slow
def test_a_training(frame: DataFrame) -> None:
    net = nn.Linear(2, 1)
    trained = TorchEstimator(
        num_proc=2,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-9),
        loss=nn.MSELoss(),
        feature_cols=["age", "y2"],
        label_cols=["y"],
        nulls={"age": "median", "y2": "mean", "y": "drop"},
        verbose=0,
    ).fit(frame.withColumnRenamed("area", "no area").selectExpr("age", "y * 2 as y2", "y"))
    assert trained.getNullValues() == {"age": statistics.median(known(0)), "y2": 1.0}
    rows = trained.transform(frame.selectExpr("age", "cast(null as float) as y2", "y")).collect()
    assert len(rows) == len(ROWS) and all(row.y__output is not None for row in rows)
