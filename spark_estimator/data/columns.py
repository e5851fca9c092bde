"""From the columns of a DataFrame to fields: which types can be trained on, and what Spark casts them to on the way.

============================  ===========================================================================
Spark type                    values of the tensor
============================  ===========================================================================
byte, short, int, long        int64
float, double, decimal        float32 (float64 for a model of doubles)
boolean                       int64, 0 or 1
date                          int64, days since 1970-01-01
timestamp                     float64, seconds since 1970-01-01T00:00:00Z
array of one of the above     a vector; all rows need the same length
VectorUDT, dense and sparse   a vector of float32
struct                        its fields, one by one, as ``name.field``
string, binary, map, others   refused, with the name of what turns them into numbers
============================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_SPARK_TYPES = {"int64": "bigint", "float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Readable:
    """A column that can be trained on.

    Attributes:
        name: as the user calls it.
        is_array: it holds vectors.
        dtype: of its tensor, if nothing else is wanted: int64, float32 or float64.
        expression: its numbers, or arrays of numbers, of whatever type.
        kind: its Spark type, in words.
    """

    name: str
    is_array: bool
    dtype: str
    expression: Column
    kind: str

    def cast(self, dtype: str) -> Column:
        """What Spark is asked for when the tensor shall be of `dtype`."""
        # Whole numbers are made of others in the spool, where a fraction would be noticed.
        fractions = dtype == "int64" and self.dtype != "int64"
        spark_type = "double" if fractions else _SPARK_TYPES[dtype]
        return self.expression.cast(f"array<{spark_type}>" if self.is_array else spark_type)


def readable(schema: StructType, name: str) -> Readable:
    """How a column is read.

    Args:
        name: of a column, or a path into a struct: ``address.zip``.

    Raises:
        DataError: there is no such column, or its type cannot be trained on.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions

    kind, path = _find(schema, name)
    column = functions.col(path)
    words = kind.simpleString()
    if type(kind).__name__ == "VectorUDT":
        return Readable(name, True, "float32", vector_to_array(column, "float32"), "vector")
    is_array = kind.typeName() == "array"
    element = kind.elementType if is_array else kind  # type: ignore[attr-defined]
    dtype = _dtype(element.typeName(), name, words)
    turn = _NUMBERS_OF.get(element.typeName())
    if turn is not None:
        column = functions.transform(column, turn) if is_array else turn(column)
    return Readable(name, is_array, dtype, column, words)


def selected(
    frame: DataFrame, columns: Sequence[Readable], dtypes: Sequence[str], nulls: str | float, *others: Column
) -> DataFrame:
    """The columns, cast, under the names ``c0``, ``c1`` and so on.

    Args:
        dtypes: [columns] of their tensors.
        nulls: "error" leaves them to be found, "drop" drops rows with a null in any column, a number takes the place of
            those that are not in arrays.
        others: columns that are taken along as they are.
    """
    from pyspark.sql import functions

    cast = []
    for number, (column, dtype) in enumerate(zip(columns, dtypes, strict=True)):
        expression = column.cast(dtype)
        if not isinstance(nulls, str) and not column.is_array:
            expression = functions.coalesce(expression, functions.lit(nulls).cast(_SPARK_TYPES[dtype]))
        cast.append(expression.alias(f"c{number}"))
    chosen = frame.select(*cast, *others)
    return chosen.dropna(subset=[f"c{number}" for number in range(len(columns))]) if nulls == "drop" else chosen


def _find(schema: StructType, name: str) -> tuple[DataType, str]:
    """The type of a column, and how Spark's functions call it."""
    if name in schema.names:
        return schema[name].dataType, f"`{name.replace('`', '``')}`"
    current: Any = schema
    path = []
    for part in name.split("."):
        if not hasattr(current, "names") or part not in current.names:
            raise DataError(f"there is no column {name!r}: the DataFrame has {', '.join(map(repr, schema.names))}.")
        current = current[part].dataType
        path.append(f"`{part.replace('`', '``')}`")
    return current, ".".join(path)


def _dtype(type_name: str, name: str, words: str) -> str:
    if type_name in ("byte", "short", "integer", "long", "boolean", "date"):
        return "int64"
    if type_name in ("float", "double") or type_name.startswith("decimal"):
        return "float32"
    if type_name.startswith("timestamp"):
        return "float64"
    raise DataError(f"column {name!r} is of type {words}, {_remedy(type_name)}")


def _days(value: Column) -> Column:
    from pyspark.sql import functions

    return functions.unix_date(value)


def _seconds(value: Column) -> Column:
    return value.cast("timestamp").cast("double")


def _zero_or_one(value: Column) -> Column:
    return value.cast("int")


_NUMBERS_OF: dict[str, Callable[[Column], Column]] = {
    "date": _days,
    "timestamp": _seconds,
    "timestamp_ntz": _seconds,
    "boolean": _zero_or_one,
}


def _remedy(type_name: str) -> str:
    if type_name in ("string", "varchar", "char"):
        return (
            "and a model reads numbers. Encode it first: pyspark.ml.feature.StringIndexer (and OneHotEncoder) for "
            "categories, or a tokenizer of your own for text; or leave it out of feature_cols."
        )
    if type_name == "binary":
        return "and a model reads numbers. Decode it first, for example in a pandas_udf that returns array<float>."
    if type_name == "struct":
        return "and a model reads numbers. Name the fields that it shall read: 'column.field'."
    if type_name == "array":
        return "an array of arrays. Flatten it (functions.flatten) and say input_shapes."
    return "which has no tensor type. Convert it to numbers, or leave it out of feature_cols."
