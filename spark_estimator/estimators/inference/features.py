"""Turns what `predict` takes into columns of Arrow and into matrices: frames, dicts, tables of Arrow, arrays.

A single value, a dict of one row and a text are errors, whose text has what `predict` takes: otherwise a text would be
read letter by letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import CategoryEncoder, encoded
from spark_estimator.data.columns import did_you_mean, remedy
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Array, Field, is_list, matrix_of, with_values
from spark_estimator.data.numbers import kind_of, numbers_of, without_nulls
from spark_estimator.data.preparation import Preparation
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.times import instants_of, zone_in_force

#: What models of numbers predict from.
_TAKEN = (
    "predict() takes a pandas.DataFrame, a pyarrow.Table, or a dict, with a list or an array of the rows' values for "
    "each feature column; or an array [rows, ...], and a list of such arrays for a model of several inputs"
)
_ROWS = "a list of dicts is no table: predict() takes pandas.DataFrame(rows)"


def columns_of(features: Any) -> Any:
    """What `predict` was given as a frame or a mapping; None: it has no columns.

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


def column_of(features: Any, name: str) -> Any:
    """A column of a pandas frame, or of a mapping.

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
    """Raises TypeError if a column is a single value, or has no order, and not a list or array of values."""
    is_one = isinstance(values, (str, bytes, bytearray, Mapping, Set)) or not hasattr(values, "__len__")
    if is_one or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"column {name!r} is {values!r:.60}, and no list or array of values. {_TAKEN}.")


def arrow_columns(
    features: Any,
    inputs: Sequence[Field],
    decoders: Mapping[str, Decoder],
    encoders: Mapping[str, CategoryEncoder],
    zone: str,
    *,
    nulls: bool = False,
) -> list[pyarrow.Array]:
    """[columns] of all inputs, in their order: numbers or arrays of them; bytes and categories as they are.

    Args:
        features: a frame, or a mapping.
        decoders, encoders: by the names of the inputs' columns.
        zone: as of `times.zone_in_force`.
        nulls: NaN in a column of numbers means null.

    Raises:
        DataError, TypeError: a column is missing, or cannot be used; or they have different numbers of rows.
    """
    arrays, lengths = [], {}
    for field in inputs:
        for name, column, days in zip(field.names, field.columns, field.holds_dates, strict=True):
            values, is_category = column_of(features, name), column in encoders
            array = _arrow_column(values, name, zone, nulls=nulls, categories=is_category, days=days)
            if not is_category and not (column in decoders and pyarrow.types.is_binary(array.type)):
                _check_numbers(array.type, name)
            arrays.append(array)
            lengths[name] = len(array)
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different numbers of rows: {lengths}.")
    return arrays


def decoded(batch: pyarrow.RecordBatch, decoders: Mapping[str, Decoder]) -> pyarrow.RecordBatch:
    """With arrays in place of bytes.

    Raises:
        DataError: a decoder failed.
    """
    names = batch.schema.names
    needed = {name: value for name, value in decoders.items() if pyarrow.types.is_binary(batch.column(name).type)}
    if not needed or not batch.num_rows:
        return batch
    _, columns = Preparation(tuple(names), decoders=needed).passed(batch, source="a batch of rows")
    return pyarrow.RecordBatch.from_arrays([columns[name] for name in names], names=names)


def without_nulls_in(
    batch: pyarrow.RecordBatch, null_values: Mapping[str, float], inputs: Sequence[Field]
) -> pyarrow.RecordBatch:
    """With a number in place of each null and NaN, in the columns that have one.

    Args:
        null_values: the numbers, by the column's name in the batch.
    """
    dtypes = {column: field.dtype for field in inputs for column in field.columns}
    names = batch.schema.names
    # None for arrays: a column of nothing but nulls does not show by its type that it has some.
    scalars = {
        column for field in inputs for column, width in zip(field.columns, field.widths, strict=True) if width == 1
    }
    policies = [null_values[name] if name in null_values and name in scalars else "error" for name in names]
    return without_nulls(batch, policies, [dtypes[name] for name in names]) if null_values else batch


def matrices_of(
    features: Any,
    inputs: Sequence[Field],
    decoders: Mapping[str, Decoder],
    encoders: Mapping[str, CategoryEncoder],
    null_values: Mapping[str, float],
    zone: str,
) -> list[Array]:
    """[inputs] matrices of [rows, width], of what a model's ``predict`` takes.

    Args:
        decoders, encoders, null_values: by the names of the inputs' columns.
        zone: as of `times.zone_in_force`.

    Raises:
        TypeError: it is nothing that `predict` takes; the text has what it takes.
        DataError: it does not fit; the text names the column, or the input.
    """
    table = columns_of(features)
    if table is not None:
        names = [column for field in inputs for column in field.columns]
        arrays = arrow_columns(table, inputs, decoders, encoders, zone)
        batch = encoded(decoded(pyarrow.RecordBatch.from_arrays(arrays, names=names), decoders), encoders)
        batch = without_nulls_in(batch, null_values, inputs)
        return [matrix_of(batch, field, source="a batch of rows") for field in inputs]
    is_list_of_any = isinstance(features, (list, tuple))
    if is_list_of_any and any(isinstance(row, Mapping) for row in features):
        raise TypeError(_ROWS)
    array_likes = list(features) if is_list_of_any and len(inputs) > 1 else [features]
    if len(array_likes) != len(inputs):
        number = f"{len(array_likes)} array{' was' if len(array_likes) == 1 else 's were'}"
        raise DataError(f"{number} given for {len(inputs)} input{'s' * (len(inputs) > 1)}. {_TAKEN}.")
    matrices = [
        _matrix(array, wanted, encoders, null_values, zone) for array, wanted in zip(array_likes, inputs, strict=True)
    ]
    lengths = {field.name: len(matrix) for field, matrix in zip(inputs, matrices, strict=True)}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays have different numbers of rows: {lengths}.")
    return matrices


def _matrix(
    array: Any,
    wanted: Field,
    encoders: Mapping[str, CategoryEncoder],
    null_values: Mapping[str, float],
    zone: str,
) -> Array:
    """[rows, width] of an input, of an array or a list."""
    try:
        result = numpy.asarray(array)
    except ValueError:  # rows of different lengths
        result = numpy.empty(len(array), object)
    if result.ndim == 0 or isinstance(array, bytearray):
        raise TypeError(f"predict() was given {array!r:.60} for {wanted.name}. {_TAKEN}.")
    if not encoders.keys().isdisjoint(wanted.columns):
        return _ids_of(array, wanted, encoders)
    if result.dtype.kind == "O" and result.ndim == 1:
        return _matrix_of_values(array, wanted, null_values, zone)
    if result.dtype.kind == "M":
        result = _numbers_of_times(result, wanted, zone)
    values = result.flat if result.dtype.kind in "OUS" else ()
    text = next((value for value in values if isinstance(value, (str, bytes))), None)
    if text is not None:  # numpy would read numbers out of it
        raise DataError(f"the array that is given for {wanted.name} holds {str(text)!r}: a model reads numbers.")
    if result.dtype.kind in "cmV":
        raise DataError(f"the array that is given for {wanted.name} is of {result.dtype}: a model reads real numbers.")
    result = _without_nan(result, wanted, null_values)
    try:
        matrix = numpy.ascontiguousarray(result, wanted.dtype)
    except (TypeError, ValueError) as error:
        raise DataError(f"the array that is given for {wanted.name} does not hold numbers alone: {error}.") from error
    if matrix.dtype.kind == "i" and result.dtype.kind == "f" and (matrix != result).any():
        raise DataError(f"{wanted.name} was trained with whole numbers; the array that is given has others.")
    if matrix.size != len(matrix) * wanted.width:
        raise DataError(
            f"an array of shape {list(matrix.shape)} was given for {wanted.name}: it has to be [rows, {wanted.width}]."
        )
    return matrix.reshape(len(matrix), wanted.width)


def _matrix_of_values(values: Any, wanted: Field, null_values: Mapping[str, float], zone: str) -> Array:
    """As `_matrix`, of objects: a row's value, or its list or array."""
    array = _arrow_column(values, wanted.name, zone, days=all(wanted.holds_dates))
    _check_numbers(array.type, wanted.name)
    if len(wanted.columns) == 1:
        batch = pyarrow.RecordBatch.from_arrays([array], names=list(wanted.columns))
        return matrix_of(without_nulls_in(batch, null_values, [wanted]), wanted, source="a batch of rows")
    joined = replace(wanted, names=(wanted.name,), columns=("c0",), widths=(wanted.width,), padding=(), dates=())
    return matrix_of(pyarrow.RecordBatch.from_arrays([array], names=["c0"]), joined, source="a batch of rows")


def _numbers_of_times(times: Array, wanted: Field, zone: str) -> Array:
    """Numbers of an array of ``datetime64``, of the same shape; NaN for NaT."""
    if any(wanted.holds_dates) and not all(wanted.holds_dates):
        raise DataError(f"{wanted.name} are dates and others: give predict() a frame, or a dict, with these columns.")
    flat = _with_numbers_of_times(pyarrow.array(times.reshape(-1)), all(wanted.holds_dates), zone)
    result: Array = numbers_of(flat).to_numpy(zero_copy_only=False).reshape(times.shape)
    return result


def _without_nan(values: Array, wanted: Field, null_values: Mapping[str, float]) -> Array:
    """With a number in place of each NaN, in the columns of the input that have one; other shapes stay as they are."""
    if values.dtype.kind != "f" or null_values.keys().isdisjoint(wanted.columns) or values.size % wanted.width:
        return values
    numbers = [
        null_values.get(column, numpy.nan)
        for column, width in zip(wanted.columns, wanted.widths, strict=True)
        for _ in range(width)
    ]
    rows = values.reshape(-1, wanted.width)
    result: Array = numpy.where(numpy.isnan(rows), numpy.asarray(numbers, values.dtype), rows).reshape(values.shape)
    return result


def _ids_of(values: Any, wanted: Field, encoders: Mapping[str, CategoryEncoder]) -> Array:
    """[rows, width] ids of an array of categories.

    Raises:
        DataError: the input has other columns, too.
    """
    if len(wanted.columns) > 1:
        raise DataError(
            f"the input of {wanted.name} contains categories beside other columns: give predict() a frame, or a dict, "
            "with these columns."
        )
    array = _arrow_column(values, wanted.name, "UTC", categories=True)
    column = pyarrow.RecordBatch.from_arrays([array], names=list(wanted.columns))
    return matrix_of(encoded(column, encoders), wanted, source="a batch of rows")


def _arrow_column(
    values: Any, name: str, zone: str, *, nulls: bool = False, categories: bool = False, days: bool = False
) -> pyarrow.Array:
    """A column of pandas or of Arrow, or a list, as numbers or arrays of them, or as bytes or texts.

    Args:
        zone: as of `times.zone_in_force`.
        nulls: NaN in a column of numbers means null.
        categories: it is a column of categories, in which NaN always means null.
        days: it was trained as one of dates, which MLflow gives as times.
    """
    check_values(values, name)
    try:
        if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
            array = values
        elif getattr(values, "dtype", numpy.dtype(object)) == numpy.dtype(object) or getattr(values, "ndim", 1) > 1:
            items = [value.toArray() if hasattr(value, "toArray") else value for value in values]
            array = pyarrow.array(items, from_pandas=categories)
        else:
            array = pyarrow.array(values, from_pandas=nulls or categories)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        wanted = "categories of one type" if categories else "numbers"
        raise DataError(f"column {name!r} is not one of {wanted}: {error}") from error
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if pyarrow.types.is_dictionary(array.type):  # pandas' categories
        array = array.dictionary_decode()
    if pyarrow.types.is_struct(array.type) and kind_of(array.type) != "vector":
        raise DataError(f"column {name!r} holds dicts, and models need numbers. List its fields: '{name}.field'.")
    return numbers_of(_with_numbers_of_times(array, days, zone))


def _with_numbers_of_times(array: pyarrow.Array, days: bool, zone: str) -> pyarrow.Array:
    """With dates, or instants, in place of times of pandas; also in arrays. Others stay as they are."""
    kind = array.type
    if is_list(kind) and pyarrow.types.is_timestamp(kind.value_type):
        return with_values(array, _with_numbers_of_times(array.flatten(), days, zone))
    if not pyarrow.types.is_timestamp(kind):
        return array
    if days:
        local = array if kind.tz is None else pyarrow.compute.local_timestamp(array)
        return pyarrow.compute.floor_temporal(local, unit="day").cast(pyarrow.date32())
    return array if kind.tz is not None else instants_of(array, zone_in_force(zone))


def _check_numbers(kind: pyarrow.DataType, name: str) -> None:
    """Raises DataError for a column of texts or others that numpy would make numbers of."""
    types, inside = pyarrow.types, kind.value_type if is_list(kind) else kind
    is_text = types.is_string(inside) or types.is_large_string(inside) or types.is_binary(inside)
    if is_text or types.is_duration(inside) or types.is_time(inside):
        raise DataError(f"column {name!r} is of type {kind_of(inside)}, {remedy(kind_of(inside))}")
