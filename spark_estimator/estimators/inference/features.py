"""Turns what `predict` takes into columns of Arrow, which a `RowEncoder` encodes: frames, dicts, tables, arrays.

A single value, a dict of one row and a text are errors, whose text has what `predict` takes: otherwise a text would be
read letter by letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.columns import did_you_mean, suggest_remedy
from spark_estimator.data.fields import Array, Field, is_list, make_matrix, replace_values
from spark_estimator.data.numbers import get_kind, to_numbers
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.times import get_zone, to_instants

#: What models of numbers predict from.
_TAKEN = (
    "predict() takes a pandas.DataFrame, a pyarrow.Table, or a dict, with a list or an array of the rows' values for "
    "each feature column; or an array [rows, ...], and a list of such arrays for a model of several inputs"
)


def find_columns(features: Any) -> Any:
    """Return what `predict` was given as a frame or a mapping; None: it has no columns.

    Raises:
        DataError: it is a DataFrame of Spark's, or two of its columns have one name.
    """
    if hasattr(features, "sparkSession"):
        raise DataError("predict() works without Spark; of a DataFrame of Spark's, transform(df) predicts.")
    if isinstance(features, (pyarrow.Table, pyarrow.RecordBatch)):
        names = features.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"there are {names.count(twice)} columns named {twice!r}: rename all but one of them.")
        return dict(zip(names, features.columns, strict=True))
    return features if isinstance(features, Mapping) or hasattr(features, "columns") else None


def get_column(features: Any, name: str) -> Any:
    """Return a column of a pandas frame, or of a mapping.

    Raises:
        DataError: it is not there, or there several times.
    """
    if name not in features:
        raise DataError(f"there is no column {name!r} among {list(features)}." + did_you_mean(name, features))
    values = features[name]
    if hasattr(values, "columns"):  # pandas returns a frame for duplicates
        raise DataError(f"there are {len(values.columns)} columns named {name!r}: rename all but one of them.")
    return values


def check_values(values: Any, name: str) -> None:
    """Raise TypeError if a column is a single value, or has no order, and not a list or array of values."""
    is_one = isinstance(values, (str, bytes, bytearray, Mapping, Set)) or not hasattr(values, "__len__")
    if is_one or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"column {name!r} is {values!r:.60}, and no list or array of values. {_TAKEN}.")


def read_table(features: Any, encoder: RowEncoder, zone: str, *, nulls: bool = False) -> pyarrow.RecordBatch:
    """Return the columns of a model's inputs, under the encoder's names.

    Args:
        features: a frame, or a mapping; see `find_columns`.
        zone: as of `times.get_zone`.
        nulls: NaN in a column of numbers means null.

    Raises:
        DataError, TypeError: a column is missing, or cannot be used; or they have different numbers of rows.
    """
    arrays, lengths = {}, {}
    for field in encoder.fields:
        for name, column, time in zip(field.names, field.columns, field.all_times, strict=True):
            values, is_category = get_column(features, name), column in encoder.categories
            array = _to_arrow(values, name, zone, nulls=nulls, categories=is_category, time=time)
            if not is_category and not (column in encoder.decoders and pyarrow.types.is_binary(array.type)):
                _check_numbers(array.type, name)
            arrays[column] = array
            lengths[name] = len(array)
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different numbers of rows: {lengths}.")
    return pyarrow.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def read_features(features: Any, encoder: RowEncoder, zone: str) -> pyarrow.RecordBatch:
    """Return the columns of a model's inputs, of anything that a model's ``predict`` takes.

    Args:
        zone: as of `times.get_zone`.

    Raises:
        TypeError: it is nothing that `predict` takes; the text has what it takes.
        DataError: it does not fit; the text names the column, or the input.
    """
    table = find_columns(features)
    if table is not None:
        return read_table(table, encoder, zone)
    inputs = encoder.fields
    is_list_of_any = isinstance(features, (list, tuple))
    if is_list_of_any and any(isinstance(row, Mapping) for row in features):
        raise TypeError("a list of dicts is no table: predict() takes pandas.DataFrame(rows)")
    array_likes = list(features) if is_list_of_any and len(inputs) > 1 else [features]
    if len(array_likes) != len(inputs):
        number = f"{len(array_likes)} array{' was' if len(array_likes) == 1 else 's were'}"
        raise DataError(f"{number} given for {len(inputs)} input{'s' * (len(inputs) > 1)}. {_TAKEN}.")
    columns: dict[str, pyarrow.Array] = {}
    lengths = {}
    for array, field in zip(array_likes, inputs, strict=True):
        parts = _split_input(array, field, encoder, zone)
        columns.update(zip(field.columns, parts, strict=True))
        lengths[field.name] = len(parts[0])
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays have different numbers of rows: {lengths}.")
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _split_input(array: Any, field: Field, encoder: RowEncoder, zone: str) -> list[pyarrow.Array]:
    """Return [columns] those of an input that is given as one array [rows, ...], or as a list of rows."""
    try:
        values = numpy.asarray(array)
    except ValueError:  # rows of different lengths
        values = numpy.empty(len(array), object)
    if values.ndim == 0 or isinstance(array, bytearray):
        raise TypeError(f"predict() was given {array!r:.60} for {field.name}. {_TAKEN}.")
    is_alone = len(field.columns) == 1
    time = field.all_times[0] if len(set(field.all_times)) == 1 else None
    is_category = not encoder.categories.keys().isdisjoint(field.columns)
    if is_category and not is_alone:
        raise DataError(
            f"the input of {field.name} contains categories beside other columns: give predict() a frame, or a dict, "
            "with these columns."
        )
    if values.ndim == 2 and values.shape[1] != field.width and is_alone and field.padding not in ((), (None,)):
        return [_to_arrow(list(values), field.name, zone, time=time or "")]  # equally short rows, which are filled up
    if is_category or (values.dtype.kind == "O" and values.ndim == 1):
        column = _to_arrow(array, field.name, zone, categories=is_category, time=time or "")
        if not is_category:
            _check_numbers(column.type, field.name)
        if is_alone:
            return [column]
        values = _join_lists(column, field)
    if values.dtype.kind == "M":
        if time is None:
            raise DataError(f"{field.name} are dates, times and others: give predict() a frame, or a dict, of them.")
        flat = _localize_times(pyarrow.array(values.reshape(-1)), time, zone)
        values = to_numbers(flat).to_numpy(zero_copy_only=False).reshape(values.shape)  # NaN for NaT
    return _split_array(_check_array(values, field), field)


def _join_lists(column: pyarrow.Array, field: Field) -> Array:
    """Return the rows [rows, width] of an input of several columns, each of which is given as a list of values."""
    whole = Field((field.name,), ("c0",), (field.width,), field.dtype, (field.width,), stored=field.stored)
    batch = pyarrow.RecordBatch.from_arrays([to_numbers(column)], names=["c0"])
    return make_matrix(batch, whole, source="a batch of rows")


def _check_array(values: Array, field: Field) -> Array:
    """Return the rows [rows, width] of an array of numbers, in a type that Arrow has.

    Raises:
        DataError: they are no real numbers, or of another shape.
    """
    kind = values.dtype.kind
    texts = values.flat if kind in "OUS" else ()
    text = next((value for value in texts if isinstance(value, (str, bytes))), None)
    if text is not None:  # numpy would read numbers out of it
        raise DataError(f"the array that is given for {field.name} holds {str(text)!r}: a model reads numbers.")
    if kind in "cmV":
        raise DataError(f"the array that is given for {field.name} is of {values.dtype}: a model reads real numbers.")
    try:
        if field.dtype != "int64":
            values = values.astype(field.dtype, copy=False)
        elif kind not in "iu":
            values = values.astype("uint8" if kind == "b" else "float64", copy=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"the array that is given for {field.name} does not hold numbers alone: {error}.") from error
    if values.size != len(values) * field.width:
        raise DataError(
            f"an array of shape {list(values.shape)} was given for {field.name}: it has to be [rows, {field.width}]."
        )
    return numpy.ascontiguousarray(values).reshape(len(values), field.width)


def _split_array(rows: Array, field: Field) -> list[pyarrow.Array]:
    """Return [columns] those of an input, of its rows [rows, width]."""
    columns, start = [], 0
    for width in field.widths:
        part = pyarrow.array(numpy.ascontiguousarray(rows[:, start : start + width]).reshape(-1))
        columns.append(part if width == 1 else pyarrow.FixedSizeListArray.from_arrays(part, width))
        start += width
    return columns


def _to_arrow(
    values: Any, name: str, zone: str, *, nulls: bool = False, categories: bool = False, time: str = ""
) -> pyarrow.Array:
    """Return a column of pandas or of Arrow, or a list, as numbers or arrays of them, or as bytes or texts.

    Args:
        zone: as of `times.get_zone`.
        nulls: NaN in a column of numbers means null.
        categories: it is a column of categories, in which NaN always means null.
        time: as `Field.times` has it of its training; MLflow gives dates as times.
    """
    check_values(values, name)
    if hasattr(values, "__array__") and not hasattr(values, "to_numpy"):  # a tensor
        values = numpy.asarray(values)
    try:
        if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
            array = values
        elif getattr(values, "dtype", numpy.dtype(object)) == numpy.dtype(object) or getattr(values, "ndim", 1) > 1:
            items = [value.toArray() if hasattr(value, "toArray") else value for value in values]
            array = pyarrow.array(items, from_pandas=categories)
        else:
            array = pyarrow.array(values, from_pandas=nulls or categories)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError) as error:
        wanted = "categories of one type" if categories else "numbers"
        raise DataError(f"column {name!r} is not one of {wanted}: {error}") from error
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if pyarrow.types.is_dictionary(array.type):  # pandas' categories
        array = array.dictionary_decode()
    if "list_view" in str(array.type).partition("<")[0]:  # Arrow's own cast makes arrays that are not valid
        array = pyarrow.array(array.to_pylist(), pyarrow.large_list(array.type.value_type))
    if _is_bytes(array.type):
        array = array.cast(pyarrow.binary())
    if pyarrow.types.is_struct(array.type) and get_kind(array.type) != "vector":
        raise DataError(f"column {name!r} holds dicts, and models need numbers. List its fields: '{name}.field'.")
    return _localize_times(array, time, zone)


def _is_bytes(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_large_binary(kind) or str(kind).startswith(("fixed_size_binary", "binary_view"))


def _localize_times(array: pyarrow.Array, time: str, zone: str) -> pyarrow.Array:
    """With dates, or instants, in place of times of pandas; also in arrays. Others stay as they are."""
    kind = array.type
    if is_list(kind) and pyarrow.types.is_timestamp(kind.value_type):
        return replace_values(array, _localize_times(array.flatten(), time, zone))
    if not pyarrow.types.is_timestamp(kind):
        return array
    if time == "date":
        local = array if kind.tz is None else pyarrow.compute.local_timestamp(array)
        return pyarrow.compute.floor_temporal(local, unit="day").cast(pyarrow.date32())
    return array if kind.tz is not None else to_instants(array, get_zone(zone), time)


def _check_numbers(kind: pyarrow.DataType, name: str) -> None:
    """Raise DataError for a column of texts or others that numpy would make numbers of."""
    types, inside = pyarrow.types, kind.value_type if is_list(kind) else kind
    if get_kind(inside) in ("string", "binary") or types.is_duration(inside) or types.is_time(inside):
        raise DataError(f"column {name!r} is of type {get_kind(inside)}, {suggest_remedy(get_kind(inside))}")
