"""Turns the columns of a DataFrame into fields: the types that can be trained on, and what Spark casts them to.

============================  ===========================================================================
Spark type                    values of the tensor
============================  ===========================================================================
byte, short, int, long        int64
float, double, decimal        float32 (float64 for a model of doubles)
boolean                       int64, 0 or 1
date                          int64, days since 1970-01-01
timestamp, timestamp_ntz      float64, seconds since 1970-01-01T00:00:00Z; of ntz in the session's time zone, in UTC
                              where files are read without a DataFrame
array of one of the above     a vector; rows of different lengths need ``padding``
VectorUDT, dense and sparse   a vector of float32
struct                        its fields, one by one, as ``name.field``
binary                        with ``decoders``, the array that the function makes of it; uint8 stays so in the spool,
                              and is a float32 in a feature's tensor, an int64 in a label's
string                        with ``categories``, ids from 0: int64; also of whole numbers and booleans, and of arrays
map, others                   refused, with the name of what turns them into numbers
============================  ===========================================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_estimator.data.categories import CategoryEncoder, is_text
from spark_estimator.data.nulls import Nulls, get_policy
from spark_estimator.data.quoting import quote
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_SPARK_TYPES = {"int64": "bigint", "float32": "float", "float64": "double"}
#: The Spark types of scalars that are sent side by side in one array.
PACKED_TYPES = tuple(_SPARK_TYPES.values())
# The last schema, and its columns' numbers by their names.
_last_places: tuple[StructType | None, dict[str, list[int]]] = None, {}


@dataclass(frozen=True)
class Readable:
    """A column that can be trained on.

    Attributes:
        name: as the user calls it.
        is_array: it holds vectors.
        dtype: of its tensor, if nothing else is wanted: int64, float32 or float64.
        expression: its numbers, or arrays of numbers, of any type, or bytes that a decoder turns into them; None:
            it is a column of files.
        kind: its Spark type, in words.
        shape: of a row's array, where a function of the user's makes it and has been seen to; None: it is just long.
        kept: ``uint8`` where a function makes arrays of bytes: pixels, which the spool keeps so; else empty.
        ids: the number of ids of a column of categories, which become ids where the column is read; 0: it has none.
        decoded: as in `Field.decoded`.
    """

    name: str
    is_array: bool
    dtype: str
    expression: Column | None
    kind: str
    shape: tuple[int, ...] | None = None
    kept: str = ""
    ids: int = 0
    decoded: str = ""

    @property
    def takes_nulls(self) -> bool:
        """Return whether null is a value as any other: that of a category is id 0."""
        return bool(self.ids) and not self.is_array

    @property
    def time(self) -> str:
        """Return what times it holds, as `Field.times` has it."""
        element = self.kind.removeprefix("array<").removesuffix(">")
        return element if element in ("date", "timestamp_ntz") else ""

    @property
    def marks(self) -> Column:
        """Return true and false, under the name ``marker``; null for another number than 0 and 1."""
        from pyspark.sql import functions

        assert self.expression is not None, self.name
        valid = functions.when(self.expression.isin(0, 1), self.expression)
        return valid.cast("boolean").alias("marker")

    @property
    def stored(self) -> Column:
        """Return its numbers as they are kept in files, under its name."""
        assert self.expression is not None, self.name
        expression = self.expression.cast("double") if self.kind.startswith("decimal") else self.expression
        return expression.alias(self.name)

    def cast(self, dtype: str) -> Column:
        """Return the Spark expression of the column for a tensor of `dtype`."""
        assert self.expression is not None, self.name
        spark_type = self.choose_type(dtype)
        return self.expression if spark_type == "binary" else self.expression.cast(spark_type)

    def choose_type(self, dtype: str) -> str:
        """Return the Spark type of `cast`."""
        if self.kind == "binary":
            return "binary"
        if self.ids:
            spark_type = "string" if is_text(self.kind.removeprefix("array<")) else "bigint"
        else:
            # Whole numbers are made of others in the spool, where a fraction would be noticed.
            fractions = dtype == "int64" and self.dtype != "int64"
            spark_type = "double" if fractions else _SPARK_TYPES[dtype]
        return f"array<{spark_type}>" if self.is_array else spark_type


def make_raw(schema: StructType, name: str) -> Readable:
    """Return a column as it is, of any type, for a function of the user's; of vectors the values.

    Raises:
        DataError: the column is missing.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions

    kind, path = _find(schema, name)
    column = functions.col(path)
    if type(kind).__name__ == "VectorUDT":
        return Readable(name, True, "", vector_to_array(column), "vector")
    return Readable(name, kind.typeName() == "array", "", column, kind.simpleString())


def make_category(schema: StructType, name: str, encoder: CategoryEncoder) -> Readable:
    """Return how a column of categories is read.

    Args:
        name: of a column, or a path into a struct.
        encoder: makes its ids.

    Raises:
        DataError: the column is missing, or does not hold such categories.
    """
    from pyspark.sql import functions

    kind, path = _find(schema, name)
    encoder.check(name, kind.simpleString())
    is_array = kind.typeName() == "array"
    return Readable(name, is_array, "int64", functions.col(path), kind.simpleString(), ids=encoder.size)


def make_readable(schema: StructType, name: str, decoded: bool = False) -> Readable:
    """Return how a column is read.

    Args:
        name: of a column, or a path into a struct: ``address.zip``.
        decoded: there is a decoder for its bytes.

    Raises:
        DataError: the column is missing, or its type cannot be trained on.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions

    kind, path = _find(schema, name)
    column = functions.col(path)
    words = kind.simpleString()
    if type(kind).__name__ == "VectorUDT":
        return Readable(name, True, "float32", vector_to_array(column), "vector")
    if decoded:
        check_decoded(name, words)
        return Readable(name, True, "float32", column, words)
    is_array = kind.typeName() == "array"
    element = kind.elementType if is_array else kind  # type: ignore[attr-defined]
    dtype = _choose_dtype(element.typeName(), name, words)
    turn = _NUMBERS_OF.get(element.typeName())
    if turn is not None:
        column = functions.transform(column, turn) if is_array else turn(column)
    return Readable(name, is_array, dtype, column, words)


def cast_columns(columns: Sequence[Readable], dtypes: Sequence[str], nulls: Nulls) -> list[Column]:
    """Return the columns, cast to the types of their tensors, under the names ``c0``, ``c1`` and so on.

    Args:
        dtypes: [columns] of their tensors.
        nulls: a number replaces nulls and NaN, as Spark's ``fillna``, but neither values in arrays nor
            categories; "error" and "drop" leave both.
    """
    from pyspark.sql import functions

    cast = []
    for number, (column, dtype) in enumerate(zip(columns, dtypes, strict=True)):
        expression = column.cast(dtype)
        policy = get_policy(nulls, column.name)
        if not isinstance(policy, str) and not (column.is_array or column.ids or column.kind == "binary"):
            finite = expression if column.dtype == "int64" else functions.when(~functions.isnan(expression), expression)
            expression = functions.coalesce(finite, functions.lit(policy).cast(_SPARK_TYPES[dtype]))
        cast.append(expression.alias(f"c{number}"))
    return cast


def find_dropping_columns(columns: Sequence[Readable], nulls: Nulls) -> list[str]:
    """Return the names in `cast_columns` of those in which null or NaN drops the row; in categories null drops none."""
    return [
        f"c{number}"
        for number, column in enumerate(columns)
        if get_policy(nulls, column.name) == "drop" and not column.takes_nulls
    ]


def pack_columns(columns: Sequence[Column], kinds: Sequence[str]) -> tuple[list[Column], tuple[tuple[int, ...], ...]]:
    """Put the scalars of each type side by side in one array: Spark sends many columns slowly.

    Args:
        columns, kinds: expressions, and their Spark types.

    Returns:
        What to select, and [selected] the numbers of the columns in it (`RowEncoder.packed`).
    """
    from pyspark.sql import functions

    numbers_of_kind: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        numbers_of_kind.setdefault(kind if kind in PACKED_TYPES else f"{number}", []).append(number)
    packed = tuple(map(tuple, numbers_of_kind.values()))
    arrays = [
        functions.array(*(columns[number] for number in numbers)) if len(numbers) > 1 else columns[numbers[0]]
        for numbers in packed
    ]
    return arrays, packed


def _find(schema: StructType, name: str) -> tuple[DataType, str]:
    """Return the type of a column, and how Spark's functions call it."""
    positions = _find_places(schema).get(name, [])
    if len(positions) > 1:
        raise DataError(f"there are {len(positions)} columns named {name!r}: rename all but one of them.")
    if positions:
        return schema.fields[positions[0]].dataType, quote(name)
    current: Any = schema
    path = []
    for part in name.split("."):
        if not hasattr(current, "names") or part not in current.names:
            raise DataError(
                f"there is no column {name!r}: the DataFrame has {', '.join(map(repr, schema.names))}."
                + did_you_mean(name, schema.names)
            )
        current = current[part].dataType
        path.append(quote(part))
    return current, ".".join(path)


def _find_places(schema: StructType) -> dict[str, list[int]]:
    """Return the numbers of columns by their names, which are asked for column by column."""
    global _last_places
    last_schema, positions = _last_places
    if last_schema is not schema:
        positions = {}
        for number, name in enumerate(schema.names):
            positions.setdefault(name, []).append(number)
        _last_places = schema, positions
    return positions


def check_names(frame: DataFrame, names: Iterable[str]) -> None:
    """Raise DataError for names that several columns have, to Spark: by default it does not mind which letters are
    capital.

    Args:
        names: of columns, or paths into structs; those that are missing are left to others.

    Raises:
        DataError: the text names the columns.
    """
    columns = frame.columns
    same_names: dict[str, list[str]] = {}
    for column in columns:
        same_names.setdefault(column.lower(), []).append(column)
    for name in names:
        column = name if name in same_names.get(name.lower(), ()) else name.partition(".")[0]
        same = same_names.get(column.lower(), [])
        if same.count(column) > 1:
            raise DataError(f"there are {same.count(column)} columns named {column!r}: rename all but one of them.")
        if len(same) > 1 and frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            raise DataError(
                f"the columns {' and '.join(map(repr, same))} have the same name to Spark: rename all but one of them, "
                "or set spark.sql.caseSensitive=true."
            )


def did_you_mean(name: str, there: Iterable[Any]) -> str:
    """Return a sentence on the names that were meant, perhaps; empty if none is near.

    Spark does not mind, by default, which letters are capital; files, pandas and this package do.
    """
    names = [str(column) for column in there]
    others = [other for other in names if other.lower() == name.lower()]
    if others:
        return f" Did you mean {' or '.join(map(repr, others))}? Capital letters count."
    near = difflib.get_close_matches(name, names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _choose_dtype(type_name: str, name: str, words: str) -> str:
    if type_name in ("byte", "short", "integer", "long", "boolean", "date"):
        return "int64"
    if type_name in ("float", "double") or type_name.startswith("decimal"):
        return "float32"
    if type_name.startswith("timestamp"):
        return "float64"
    raise DataError(f"column {name!r} has type {words}, {suggest_remedy(type_name)}")


def _to_days(value: Column) -> Column:
    from pyspark.sql import functions

    return functions.datediff(value, functions.lit("1970-01-01").cast("date"))


def _to_seconds(value: Column) -> Column:
    return value.cast("timestamp").cast("double")


_NUMBERS_OF: dict[str, Callable[[Column], Column]] = {
    "date": _to_days,
    "timestamp": _to_seconds,
    "timestamp_ntz": _to_seconds,
    "boolean": lambda value: value.cast("int"),
    "decimal": lambda value: value.cast("double"),  # not at once to float, which rounds otherwise than two steps
}


def check_decoded(name: str, kind: str) -> None:
    """Raise DataError for a decoder of a column that is not binary.

    Raises:
        DataError: the text names the column.
    """
    if kind != "binary":
        raise DataError(f"decoders refers to column {name!r} ({kind}), but decoders read binary columns.")


def suggest_remedy(type_name: str) -> str:
    """Return the remedy for a column whose type cannot be trained on, as the end of a sentence.

    Args:
        type_name: as Spark's ``typeName`` has it.
    """
    if type_name in ("string", "varchar", "char"):
        return (
            "and models need numbers. Estimators turn the values of a feature into ids: categories={'column': 1000}. "
            "Or encode it first: pyspark.ml.feature.StringIndexer (and OneHotEncoder) for categories and labels, a "
            "tokenizer of your own for text; or leave it out."
        )
    if type_name == "binary":
        return (
            "and models need numbers. Set decoders={'column': function} to decode its bytes into arrays, or decode it "
            "first, for example in a pandas_udf that returns array<float>."
        )
    if type_name == "struct":
        return "and models need numbers. List its fields: 'column.field'."
    if type_name == "array":
        return "an array of arrays. Flatten it (functions.flatten) and set input_shapes."
    return "which has no tensor type. Convert it to numbers, or leave it out."
