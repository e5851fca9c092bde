"""Predictions on Arrow batches and on arrays: nulls, lengths, pandas frames, values that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pandas
import pytest
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
        ({"features": [[1.0, "2", 3.0]]}, "column 'features' is not one of numbers: .*'2'"),
        (numpy.array([["1", "2", "3"]]), "given for features holds '1': a model reads numbers"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(wrong)


def test_predict_reads_pandas_as_spark_does() -> None:
    field = Field(("t",), ("c0",), (1,), "float64", (1,))
    params = {"feature_columns": ["t"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[1], label_types=["double"], **params)
    frame = pandas.DataFrame({"t": pandas.to_datetime([1_700_000_001], unit="s")})
    assert model.predict(frame).tolist() == [[1_700_000_001.0]]
    assert model.predict({"t": numpy.array([2.0, 3.0])}).tolist() == [[2.0], [3.0]]
