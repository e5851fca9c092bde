"""Predictions on Arrow batches and on arrays: nulls, lengths, pandas frames, values that do not fit."""

from __future__ import annotations

import datetime
import decimal
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pyarrow
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from tests.estimators.conftest import line_rows, linear
from tests.estimators.torch_models import expected, model_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    twice = pandas.DataFrame({"features": list(features)})
    for wrong, words in (
        (pandas.DataFrame({"Features": [1.0]}), r"among \['Features'\]\. Did you mean 'Features'\?"),
        (pandas.concat([twice, twice], axis=1), "there are 2 columns named 'features': rename"),
        ({"features": [["1", "2", "3"]]}, "'features' is of type string, and models need numbers"),
        (
            {"features": pyarrow.array([["1", "2", "3"]], pyarrow.list_(pyarrow.string_view()))},
            "'features' is of type string, and models need numbers",
        ),
        ({"features": [[1.0, "2", 3.0]]}, "column 'features' is not one of numbers: .*'2'"),
        (numpy.array([["1", "2", "3"]]), "given for features holds '1': a model reads numbers"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(wrong)


def test_predict_reads_days_in_milliseconds_and_views_of_lists() -> None:
    def model(field: Field) -> TorchModel:
        return TorchModel(
            model=torch.nn.Identity(),
            inputs=[field],
            outputs=[field.width],
            label_types=["double"],
            feature_columns=["x"],
            label_columns=["y"],
        )

    pair = Field(("x",), ("c0",), (2,), "float32", (2,))
    for kind in ("list_", "large_list", "list_view", "large_list_view"):
        if hasattr(pyarrow, kind):
            lists = pyarrow.array([[0.5, 2.0], [1.0, 3.0]], getattr(pyarrow, kind)(pyarrow.float32()))
            assert model(pair).predict(pyarrow.table({"x": lists})).tolist() == [[0.5, 2.0], [1.0, 3.0]]
    days = pyarrow.table({"x": pyarrow.array([datetime.date(1970, 1, 3)], pyarrow.date64())})
    assert model(Field(("x",), ("c0",), (1,), "int64", times=("date",))).predict(days).tolist() == [[2]]


def test_predict_reads_pandas_as_spark_does() -> None:
    field = Field(("t",), ("c0",), (1,), "float64", (1,))
    params = {"feature_columns": ["t"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[1], label_types=["double"], **params)
    frame = pandas.DataFrame({"t": pandas.to_datetime([1_700_000_001], unit="s")})
    assert model.predict(frame).tolist() == [[1_700_000_001.0]]
    assert model.predict({"t": numpy.array([2.0, 3.0])}).tolist() == [[2.0], [3.0]]


def test_many_columns_with_nulls_predict_as_single_ones(spark: SparkSession) -> None:
    """Scalars around an array, and a row with null."""
    net = nn.Linear(5, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 10.0, 100.0, 1000.0, 10000.0]]))
    names = ("a", "b", "v", "c")
    field = Field(names, ("c0", "c1", "c2", "c3"), (1, 1, 2, 1), "float32", (5,))
    params = {"feature_columns": list(names), "label_columns": ["y"]}
    model = TorchModel(model=net, inputs=[field], outputs=[1], label_types=["double"], **params)
    rows = [(1, 2.0, [3.0, 4.0], 5.0), (1, None, [3.0, 4.0], 5.0), (0, 1.0, [0.0, 0.0], 2.0)]
    frame = spark.createDataFrame(rows, "a int, b double, v array<float>, c float")
    assert [row.y__output for row in model.transform(frame).collect()] == [54321.0, None, 20010.0]


def test_spark_is_asked_as_often_for_many_columns_as_for_few(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark Connect copies the schema at each access, and analyses all columns for each `withColumn`."""
    calls: list[str] = []
    kind = type(spark.range(1))
    schema, with_column = inspect.getattr_static(kind, "schema"), kind.withColumn

    def counted_schema(frame: Any) -> Any:
        calls.append("schema")
        return schema.__get__(frame, kind)

    def counted_with_column(frame: Any, *arguments: Any) -> Any:
        calls.append("withColumn")
        return with_column(frame, *arguments)

    monkeypatch.setattr(kind, "schema", property(counted_schema))
    monkeypatch.setattr(kind, "withColumn", counted_with_column)
    counts = []
    for columns in (2, 20):
        names, labels = [f"x{number}" for number in range(columns)], [f"y{number}" for number in range(columns)]
        inputs = [Field((name,), (f"c{number}",), (1,), "float32", (1,)) for number, name in enumerate(names)]
        model = TorchModel(
            model=Same(),
            inputs=inputs,
            outputs=[1] * columns,
            label_types=["double"] * columns,
            feature_columns=names,
            label_columns=labels,
        )
        calls.clear()
        frame = model.transform(spark.range(1).selectExpr(*(f"cast({n} as float) as x{n}" for n in range(columns))))
        counts.append(Counter(calls))
    assert counts[0] == counts[1]
    assert list(frame.first()[columns:]) == [float(number) for number in range(columns)]


class Same(nn.Module):
    """Returns its inputs."""

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return inputs


def test_rows_of_an_input_of_several_columns() -> None:
    """None is lost: there are as many predictions as rows, or an error names what is wrong."""
    field = Field(("a", "b"), ("c0", "c1"), (1, 1), "float32", (2,))
    params = {"feature_columns": ["a", "b"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[2], label_types=["array<double>"], **params)
    assert model.predict([[1.0, 2.0], [3.0, 4.0]]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for wrong in ([[1.0, 2.0], None], [None, None], [decimal.Decimal(1), decimal.Decimal(2)], [[1.0, 2.0], [1.0]]):
        with pytest.raises(DataError, match="a, b"):
            model.predict(wrong)


def test_equally_short_rows_are_filled_up_as_others_are() -> None:
    field = Field(("a",), ("c0",), (3,), "float32", (3,), padding=(0.0,))
    params = {"feature_columns": ["a"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[3], label_types=["array<double>"], **params)
    for rows in (
        [[1.0], [2.0]],
        numpy.array([[1.0], [2.0]]),
        {"a": [[1.0], [2.0]]},
        {"a": torch.tensor([[1.0], [2.0]])},
    ):
        assert model.predict(rows).tolist() == [[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    assert model.predict([[], []]).tolist() == [[0.0] * 3] * 2
    with pytest.raises(DataError, match=r"'a' has 4 values in row 0 .* cuts nothing off"):
        model.predict(numpy.zeros((2, 4)))


def test_whole_numbers_beyond_the_tensor_s_are_named() -> None:
    field = Field(("n",), ("c0",), (1,), "int64", (1,))
    params = {"feature_columns": ["n"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[1], label_types=["bigint"], **params)
    large = numpy.array([1, 2**63 + 5], numpy.uint64)
    for rows in ({"n": large}, pandas.DataFrame({"n": large}), {"n": pyarrow.array(large)}, large):
        with pytest.raises(DataError, match=r"'n' is an int64 in the model, and row 1 of .* holds 9223372036854775813"):
            model.predict(rows)
    with pytest.raises(DataError, match=r"column 'n' is not one of numbers: .*too large"):
        model.predict({"n": [1, 2**64]})
