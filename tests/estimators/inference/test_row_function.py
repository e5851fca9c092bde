"""Predictions row by row."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference.prediction_columns import PredictionColumn, Role
from spark_estimator.estimators.inference.row_function import RowFunction, make_row_udf
from spark_estimator.estimators.torch.predictor import TorchPredictor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def function_of(function: Any) -> RowFunction:
    return RowFunction.from_function(TorchPredictor.of(nn.Identity(), RowEncoder(()), (), 1), function)


def test_outputs_are_arrays_of_numbers() -> None:
    made = function_of(lambda model, row: (model(torch.tensor([[row["x"], 2.0]], requires_grad=True)), [3]))
    first, second = made.call_function({"x": 1.0})
    assert first.tolist() == [1.0, 2.0] and second.tolist() == [3.0] and first.dtype == numpy.float64
    # It is sent without what was unpickled here.
    copied = pickle.loads(pickle.dumps(made))
    assert "function" not in vars(copied) and copied.call_function({"x": 5.0})[0].tolist() == [5.0, 2.0]


def test_a_row_of_another_width_is_an_error(spark: SparkSession) -> None:
    made = function_of(lambda model, row: numpy.zeros(row["n"]))
    columns = (PredictionColumn("y", 0, 1, Role.LABEL, "double"),)
    made = replace(made, predictor=replace(made.predictor, columns=columns))
    frame = spark.createDataFrame([(1,), (2,)], "n int")
    with pytest.raises(Exception, match=r"returned \[2\] values for a row; \[1\] were expected"):
        frame.select(make_row_udf(made, frame)).collect()
