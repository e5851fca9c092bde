"""Small functions of ``horovod.spark.common.util`` about columns, their types and their shapes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def to_list(var: _Item | list[_Item] | None, length: int) -> list[_Item] | None:
    """A value as a list of that length: repeated if it is one, and None if it is None.

    Raises:
        ValueError: it is a list of another length, except 1.
    """
    if var is None:
        return None
    items = var if isinstance(var, list) else [var]
    if len(items) == 1:
        return items * length
    if len(items) != length:
        raise ValueError(f"{var!r} has {len(items)} items; it needs 1 or {length}.")
    return items


def check_shape_compatibility(
    metadata: Mapping[str, Mapping[str, Any]],
    feature_columns: Sequence[str],
    label_columns: Sequence[str],
    input_shapes: Sequence[Sequence[int]] | None = None,
    output_shapes: Sequence[Sequence[int]] | None = None,
    label_shapes: Sequence[Sequence[int]] | None = None,
) -> None:
    """Checks that the columns' sizes are those of a model's inputs and outputs, whose first dimension is the batch.

    Args:
        metadata: by column, with its ``shape``: the number of values; None: not known.

    Raises:
        ValueError: a number of columns or a size is another one.
    """
    for kind, columns, shapes in (
        ("feature", feature_columns, input_shapes),
        ("label", label_columns, label_shapes),
        ("label", label_columns, output_shapes if label_shapes is None else None),
    ):
        if shapes is None:
            continue
        target = "input" if kind == "feature" else "label" if shapes is label_shapes else "output"
        if len(columns) != len(shapes):
            raise ValueError(f"there are {len(columns)} {kind} columns for {len(shapes)} {target} shapes.")
        for name, shape in zip(columns, shapes, strict=True):
            values, expected = metadata[name]["shape"], abs(math.prod(shape))
            if values is not None and values != expected:
                raise ValueError(
                    f"{kind} column {name!r} has {values} values per row; the {target} shape {list(shape)} "
                    f"has {expected}."
                )


def is_databricks() -> bool:
    """Whether this process runs on Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def get_output_cols(input_df_schema: Any, output_cols: Sequence[str]) -> list[str]:
    """The columns of a DataFrame, and those that a model adds."""
    return [*input_df_schema.names, *output_cols]


def get_spark_df_output_schema(
    input_df_schema: Any,
    label_cols: Sequence[str],
    output_cols: Sequence[str],
    metadata: Mapping[str, Mapping[str, Any]],
) -> Any:
    """The schema of a DataFrame to which a model has added a column for each label, of the label's type.

    Raises:
        ValueError: there is another number of output columns than of labels, or one exists already.
    """
    from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
    from pyspark.sql.types import StructField, StructType

    if len(label_cols) != len(output_cols):
        raise ValueError(f"there are {len(output_cols)} output columns for {len(label_cols)} label columns.")
    existing = [name for name in output_cols if name in input_df_schema.names]
    if existing:
        raise ValueError(f"the DataFrame already has the output columns {existing}: choose others, or drop them.")
    kinds = [metadata[label]["spark_data_type"] for label in label_cols]
    added = [
        StructField(name, VectorUDT() if kind in (DenseVector, SparseVector) else kind(), True)
        for name, kind in zip(output_cols, kinds, strict=True)
    ]
    return StructType([*input_df_schema.fields, *added])


def spark_scalar_to_python_type(dtype: type) -> type:
    """The Python type of a Spark type's values. Raises ValueError for others than numbers, texts and bytes."""
    from pyspark.sql import types

    kinds: dict[type, type] = {
        types.IntegerType: int,
        types.LongType: int,
        types.FloatType: float,
        types.DoubleType: float,
        types.BooleanType: bool,
        types.StringType: str,
        types.BinaryType: bytes,
    }
    if dtype not in kinds:
        raise ValueError(f"values of {dtype} have no Python type of their own; expected one of {list(kinds)}.")
    return kinds[dtype]
