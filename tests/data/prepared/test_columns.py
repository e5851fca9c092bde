"""Functions about columns that packages import from ``horovod.spark.common.util``."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql.types import BinaryType, DateType, FloatType, LongType, StructField, StructType

from spark_estimator.data.prepared import columns


def test_lists() -> None:
    assert columns.to_list(None, 2) is None
    assert columns.to_list("loss", 2) == ["loss", "loss"] == columns.to_list(["loss"], 2)
    assert columns.to_list([1, 2], 2) == [1, 2]
    with pytest.raises(ValueError, match="has 3 items; it needs 1 or 2"):
        columns.to_list([1, 2, 3], 2)


def test_shapes() -> None:
    metadata: Any = {"x": {"shape": 6}, "y": {"shape": 1}, "z": {"shape": None}}
    check = columns.check_shape_compatibility
    check(metadata, ["x", "z"], ["y"], input_shapes=[[-1, 2, 3], [-1, 9]], output_shapes=[[-1, 1]])
    check(metadata, ["x"], ["y"], output_shapes=[[-1, 5]], label_shapes=[[-1]])
    for arguments, words in (
        ({"input_shapes": [[-1, 6], [-1]]}, "1 feature columns for 2 input shapes"),
        ({"input_shapes": [[-1, 5]]}, "'x' has 6 values per row; the input shape"),
        ({"output_shapes": [[-1, 2]]}, "'y' has 1 values per row; the output shape"),
        ({"label_shapes": [[-1, 2]]}, "the label shape"),
    ):
        with pytest.raises(ValueError, match=words):
            check(metadata, ["x"], ["y"], **arguments)


def test_schemas_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType([StructField("x", FloatType())])
    assert columns.get_output_cols(schema, ["out"]) == ["x", "out"]
    metadata: Any = {"y": {"spark_data_type": LongType}, "v": {"spark_data_type": DenseVector}}
    added = columns.get_spark_df_output_schema(schema, ["y", "v"], ["a", "b"], metadata)
    assert [field.dataType for field in added] == [FloatType(), LongType(), VectorUDT()]
    with pytest.raises(ValueError, match="already has the output columns"):
        columns.get_spark_df_output_schema(schema, ["y"], ["x"], metadata)
    with pytest.raises(ValueError, match="1 output columns for 2 label"):
        columns.get_spark_df_output_schema(schema, ["y", "v"], ["a"], metadata)
    assert columns.spark_scalar_to_python_type(BinaryType) is bytes
    with pytest.raises(ValueError, match="no Python type"):
        columns.spark_scalar_to_python_type(DateType)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16")
    assert columns.is_databricks()
