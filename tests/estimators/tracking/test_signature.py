"""What MLflow has to know of a model's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.columns import Readable
from spark_estimator.data.parquet import find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference.prediction_columns import PredictionColumn, Role
from spark_estimator.estimators.rows.sampling import Columns
from spark_estimator.estimators.tracking.signature import Features, make_signature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def columns(**kinds: str) -> Columns:
    features = tuple(Readable(name, "array" in kind, "float32", None, kind) for name, kind in kinds.items())
    return Columns(features, (), None, None, features, RowEncoder(tuple(kinds)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven rows in two files, the first one without any."""
    table = pyarrow.table(
        {
            "x": pyarrow.array([float(n) for n in range(7)], pyarrow.float32()),
            "v": pyarrow.array([[n, n + 0.5] for n in range(7)], pyarrow.list_(pyarrow.float32())),
            "s": [f"s{n}" for n in range(7)],
            "gap": pyarrow.array([None, *range(6)], pyarrow.int32()),
        }
    )
    pyarrow.parquet.write_table(table[:0], tmp_path / "0.parquet")
    pyarrow.parquet.write_table(table, tmp_path / "1.parquet")
    return tmp_path


def test_the_first_rows_of_files_are_the_example(folder: Path) -> None:
    kinds = {"v": "array<float>", "x": "float", "s": "string", "gap": "int"}
    features = Features.from_files(find_files(str(folder)), columns(**kinds))
    assert features.kinds == kinds
    example = features.example
    assert list(example.columns) == list(kinds) and example["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [type(value) for value in example["v"]] == [list] * 5
    assert example["v"].tolist()[1] == [1.0, 1.5]
    assert json.loads(example[["v", "s"]].to_json(orient="split"))["data"][0] == [[0.0, 0.5], "s0"]


def test_there_is_no_example_of_columns_that_a_function_makes(folder: Path) -> None:
    kinds = {"x": "float", "made": "float"}
    assert Features.from_files(find_files(str(folder)), columns(**kinds)) == Features(kinds)


def test_there_is_no_example_without_rows(folder: Path) -> None:
    (folder / "1.parquet").unlink()
    assert Features.from_files(find_files(str(folder)), columns(x="float")).example is None


@pytest.mark.slow
def test_the_first_rows_of_a_frame(spark: SparkSession) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(float(n), Vectors.dense([n, 1.0]), [[n]], (n, "a")) for n in range(6)]
    frame = spark.createDataFrame(rows, ["x`y", "v", "deep", "s"])
    kinds = {"x`y": "double", "v": "vector", "deep": "array<array<bigint>>", "s._1": "bigint"}
    example = Features.from_frame(frame, kinds).example
    assert list(example.columns) == list(kinds) and len(example) == 5
    assert example.iloc[1].tolist() == [1.0, [1.0, 1.0], [[1]], 1]
    assert Features.from_frame(frame, {"made": "double"}).example is None


def test_mlflow_s_types() -> None:
    pytest.importorskip("mlflow")
    kinds = {
        "flag": "boolean",
        "small": "tinyint",
        "n": "bigint",
        "x": "float",
        "when": "timestamp",
        "pixels": "array<float>",
        "deep": "array<array<int>>",
        "v": "vector",
        "chat": "array<struct<role:string,content:string>>",
    }
    label, raw = (PredictionColumn(name, 0, 1, Role.LABEL, kind) for name, kind in (("y", "bigint"), ("p", "vector")))
    signature = make_signature(Features(kinds), [label, raw])
    types = {column.name: str(column.type) for column in signature.inputs.inputs}
    assert {name: types[name] for name in ("flag", "small", "n", "x", "when", "pixels", "deep", "v")} == {
        "flag": "DataType.boolean",
        "small": "DataType.integer",
        "n": "DataType.long",
        "x": "DataType.float",
        "when": "DataType.datetime",
        "pixels": "Array(double)",
        "deep": "Array(Array(integer))",
        "v": "Array(double)",
    }
    assert "role" in types["chat"] and [column.name for column in signature.outputs.inputs] == ["y", "p"]


def test_columns_that_take_null_are_optional() -> None:
    """pandas has floats for whole numbers with null, which MLflow refuses for a column of integers."""
    pytest.importorskip("mlflow")
    from mlflow.models.utils import _enforce_schema

    kinds = {"city": "string", "code": "int", "big": "bigint", "age": "double", "n": "int"}
    label = PredictionColumn("y", 0, 1, Role.LABEL, "string")
    inputs = make_signature(Features(kinds), [label], {"code", "big", "age"}).inputs
    assert inputs.required_input_names() == ["n"]
    frame = pandas.DataFrame({"city": [None, "a"], "code": [None, 1], "big": [2**40, None], "age": [None, 1.0]})
    rows = _enforce_schema(frame.assign(n=numpy.array([1, 2], numpy.int32)), inputs)
    assert rows["code"].isna().tolist() == [True, False] and rows["big"].tolist()[0] == 2**40


@pytest.mark.parametrize("kind", ["decimal(5,2)", "map<string,int>", "array<decimal(5,2)>", "struct<a:int>", ""])
def test_types_that_mlflow_does_not_have(kind: str) -> None:
    pytest.importorskip("mlflow")
    column = PredictionColumn("y", 0, 1, Role.LABEL, "decimal(5,2)")
    assert make_signature(Features({"x": kind}), [column]) is None
    signature = make_signature(Features({"x": "float"}), [column])
    assert signature.inputs is not None and signature.outputs is None


def test_values_are_plain(folder: Path) -> None:
    features = Features.from_files(find_files(str(folder)), columns(v="array<float>"))
    assert not any(isinstance(value, numpy.ndarray) for value in features.example["v"])
