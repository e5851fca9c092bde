"""Converts columns of Parquet files to the same numbers as Spark would: types, vectors of Spark ML, nulls."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import CategoryEncoder
from spark_estimator.data.columns import Readable, check_decoded, did_you_mean, suggest_remedy
from spark_estimator.data.fields import Array, copy_nulls, is_list, replace_values
from spark_estimator.data.nulls import NullPolicy
from spark_estimator.errors import DataError

_VECTOR = ["type", "size", "indices", "values"]
_DENSE = 1
_NAMES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "date32[day]": "date",
    "date64[ms]": "date",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "binary_view": "binary",
}
_WHOLE = ("tinyint", "smallint", "int", "bigint", "boolean", "date")
#: What reads the same here as in Spark, to the bit, whichever program has written it.
EXACT = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "vector", "string", "binary")


def get_kind(kind: pyarrow.DataType) -> str:
    """Return an Arrow type as Spark's ``simpleString`` has it: ``array<float>``; ``vector`` for Spark ML's."""
    if pyarrow.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return "vector" if names == _VECTOR else "struct"
    if is_list(kind):
        return f"array<{get_kind(kind.value_type)}>"
    if pyarrow.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pyarrow.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES.get(str(kind), str(kind))


def is_exact(kind: str) -> bool:
    """Return whether a column of this kind is one of `EXACT`, or holds arrays of one."""
    element = kind[len("array<") : -1] if kind.startswith("array<") else kind
    return element in EXACT and not (element == "vector" and kind != "vector")


def make_file_readable(kinds: Mapping[str, str], name: str, decoded: bool = False) -> Readable:
    """Return how a column of files is read.

    Args:
        kinds: of all columns, by name.
        decoded: there is a decoder for its bytes.

    Raises:
        DataError: the column is missing, or its type cannot be trained on.
    """
    kind = get_column_kind(kinds, name)
    if kind == "vector":
        return Readable(name, True, "float32", None, kind)
    if decoded:
        check_decoded(name, kind)
        return Readable(name, True, "float32", None, kind)
    is_array = kind.startswith("array<")
    element = kind[len("array<") : -1] if is_array else kind
    if element in ("float", "double") or element.startswith("decimal"):
        return Readable(name, is_array, "float32", None, kind)
    if element.startswith("timestamp"):
        return Readable(name, is_array, "float64", None, kind)
    if element in _WHOLE:
        return Readable(name, is_array, "int64", None, kind)
    raise DataError(
        f"column {name!r} has type {kind}, {suggest_remedy('array' if is_array else element.split('(')[0])}"
    )


def make_file_category(kinds: Mapping[str, str], name: str, encoder: CategoryEncoder) -> Readable:
    """Return what `columns.make_category` does, for a column of files.

    Args:
        kinds: of all columns, by name.

    Raises:
        DataError: the column is missing, or does not hold such categories.
    """
    kind = get_column_kind(kinds, name)
    encoder.check(name, kind)
    return Readable(name, kind.startswith("array<"), "int64", None, kind, ids=encoder.size)


def get_column_kind(kinds: Mapping[str, str], name: str) -> str:
    """Return the Spark type of a column of files.

    Raises:
        DataError: the column is missing.
    """
    if name not in kinds:
        raise DataError(
            f"there is no column {name!r}: the files have {', '.join(map(repr, kinds))}." + did_you_mean(name, kinds)
        )
    return kinds[name]


def to_numbers(array: pyarrow.Array) -> pyarrow.Array:
    """Return a column's numbers, or arrays of numbers: days of dates, seconds of timestamps, the values of vectors."""
    kind = array.type
    if pyarrow.types.is_struct(kind):
        return _get_vector_values(array)
    if pyarrow.types.is_decimal(kind):
        return array.cast(pyarrow.string()).cast(pyarrow.float64())  # at once, Arrow rounds otherwise than Spark
    if pyarrow.types.is_date(kind):
        return array.cast(pyarrow.date32()).cast(pyarrow.int32())
    if pyarrow.types.is_timestamp(kind):
        micros = array.cast(pyarrow.timestamp("us", kind.tz), safe=False).cast(pyarrow.int64())
        return pyarrow.compute.divide(micros.cast(pyarrow.float64(), safe=False), 1e6)
    if is_list(kind):
        element = kind.value_type
        if pyarrow.types.is_integer(element) or pyarrow.types.is_floating(element):
            return array  # without `flatten`, which takes 50 us, as long as the rest for some hundred rows
        inside = array.flatten()  # of those rows alone that are in this slice, and not null
        numbers = to_numbers(inside)
        if numbers is not inside:
            return replace_values(array, numbers)
    return array


def apply_null_rules(batch: pyarrow.RecordBatch, rules: Sequence[tuple[NullPolicy, str]]) -> pyarrow.RecordBatch:
    """Return a batch as after Spark's ``fillna`` and ``dropna``: a number replaces nulls, or rows are dropped.

    Args:
        rules: [columns] the policy, and the type of the tensor that the column is for. "error" leaves nulls, "drop"
            drops rows with a null (or, as Spark's ``dropna``, NaN) in the column, a number replaces null and NaN that
            are not in arrays. Further columns are taken along as they are.
    """
    if all(policy == "error" for policy, _ in rules):
        return batch
    before = batch.columns
    columns = list(before)
    missing = []
    for number, (policy, dtype) in enumerate(rules):
        column = columns[number]
        if policy == "drop":
            if column.null_count or has_nan(column):
                missing.append(pyarrow.compute.is_null(column, nan_is_null=True))
        elif not isinstance(policy, str):
            column = _replace_nan(column)
            if column.null_count:
                columns[number] = _fill_nulls(column, policy, dtype)
    if any(column is not earlier for column, earlier in zip(columns, before, strict=True)):
        batch = pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)
    return batch.filter(pyarrow.compute.invert(functools.reduce(pyarrow.compute.or_, missing))) if missing else batch


def has_nan(column: pyarrow.Array) -> bool:
    """Return whether a value is NaN; those inside of arrays do not count."""
    return pyarrow.types.is_floating(column.type) and bool(pyarrow.compute.any(pyarrow.compute.is_nan(column)).as_py())


def _replace_nan(column: pyarrow.Array) -> pyarrow.Array:
    if not has_nan(column):
        return column
    missing = pyarrow.compute.is_null(column, nan_is_null=True)
    return pyarrow.compute.if_else(missing, pyarrow.scalar(None, column.type), column)


def _fill_nulls(column: pyarrow.Array, number: float, dtype: str) -> pyarrow.Array:
    """Return a column with a number in place of nulls; unchanged if it has arrays."""
    if pyarrow.types.is_nested(column.type) or pyarrow.types.is_binary(column.type):
        return column
    # In the type of the tensor, as Spark has it: 0.5 in a column of whole numbers is 0.
    kind = pyarrow.from_numpy_dtype(numpy.dtype(dtype))
    if pyarrow.types.is_integer(kind) and pyarrow.types.is_floating(column.type):
        kind = column.type  # a fraction that does not fit is to be noticed
    value = pyarrow.array([numpy.dtype(dtype).type(number).item()]).cast(kind, safe=False)[0]
    return pyarrow.compute.fill_null(column.cast(kind, safe=False), value)


def _get_vector_values(array: pyarrow.Array) -> pyarrow.Array:
    """Return Spark ML's vectors, dense and sparse, as lists of doubles."""
    kinds = _to_integers(pyarrow.compute.struct_field(array, "type"), _DENSE)
    values = pyarrow.compute.struct_field(array, "values")
    if (kinds == _DENSE).all():
        return values
    indices = pyarrow.compute.struct_field(array, "indices")
    stored = _to_integers(pyarrow.compute.list_value_length(values), 0)
    sizes = _to_integers(pyarrow.compute.struct_field(array, "size"), 0)
    widths = numpy.where(kinds == _DENSE, stored, sizes)
    offsets = numpy.concatenate([[0], numpy.cumsum(widths)])
    numbers: Array = values.flatten().to_numpy(zero_copy_only=False)
    row = numpy.repeat(numpy.arange(len(array)), stored)
    # The position in its row: the element's position in a dense vector, its index in a sparse one.
    place = numpy.arange(len(numbers)) - numpy.repeat(numpy.cumsum(stored) - stored, stored)
    place[(kinds != _DENSE)[row]] = indices.flatten().to_numpy(zero_copy_only=False)
    flat = numpy.zeros(offsets[-1])
    flat[offsets[row] + place] = numbers
    lists = pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets, pyarrow.int64()), pyarrow.array(flat))
    return copy_nulls(array, lists)


def _to_integers(array: pyarrow.Array, instead_of_null: int) -> Array:
    result: Array = pyarrow.compute.fill_null(array.cast(pyarrow.int64()), instead_of_null).to_numpy()
    return result
