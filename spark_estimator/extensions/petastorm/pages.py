"""Converts Arrow's columns and a function's results to numpy arrays: a *page* is some rows as arrays by columns' names.

Values and types are petastorm's, but for three: null among texts stays None, where petastorm makes it the text "None";
columns of partitions are plain arrays, and not pandas' categories; whole numbers stay whole when a predicate is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.fields import Array, is_list
from spark_estimator.errors import DataError

#: Some rows: arrays [rows, ...] by the names of the columns.
Page = dict[str, Array]


def make_page(table: pyarrow.Table, shapes: Mapping[str, tuple[int | None, ...]], by_row: bool) -> Page:
    """Return a table's columns as arrays; arguments and errors as `make_array`, `shapes` by column."""
    return {name: make_array(table.column(name), name, shapes.get(name, ()), by_row) for name in table.column_names}


def make_array(
    column: pyarrow.Array | pyarrow.ChunkedArray, name: str, shape: tuple[int | None, ...] = (), by_row: bool = False
) -> Array:
    """Return a column as a writable array [rows, ...].

    Args:
        shape: of a row's value.
        by_row: the page is returned row by row: null is None (NaN of fractions), and arrays may differ in length.

    Raises:
        DataError: arrays of a column differ in length, or one is null.
    """
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    if is_list(column.type):
        return _make_matrix(column, name, shape, by_row)
    if column.null_count and by_row and not pyarrow.types.is_floating(column.type):  # which have NaN
        values = make_array(column.drop_null(), name, shape, by_row)
        result: Array = numpy.full(len(column), None, object)
        result[column.is_valid().to_numpy(zero_copy_only=False)] = list(values)
        return result
    if by_row and pyarrow.types.is_date(column.type):
        days: Array = column.cast(pyarrow.date32()).to_numpy(zero_copy_only=False).astype("datetime64[D]")
        return days
    if pyarrow.types.is_timestamp(column.type):  # in UTC, as datetime64 has no zone
        return _make_writable(column.cast(pyarrow.timestamp(column.type.unit)).to_numpy(zero_copy_only=False))
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_pandas().to_numpy()
    if _is_text(column.type):
        return numpy.asarray(values if column.null_count else values.astype(numpy.str_))
    return _make_writable(values)


def _make_matrix(column: pyarrow.Array, name: str, shape: tuple[int | None, ...], by_row: bool) -> Array:
    rows = len(column)
    lengths = pyarrow.compute.list_value_length(column)
    if not column.null_count and rows:
        inside = column.flatten()
        width = lengths[0].as_py()
        if not inside.null_count and pyarrow.compute.all(pyarrow.compute.equal(lengths, width)).as_py():
            # Texts in arrays stay objects, as petastorm's do.
            flat = inside.to_pandas().to_numpy() if _is_text(inside.type) else make_array(inside, name)
            extents = _to_extents(shape) if len(shape) > 1 and math.prod(_to_extents(shape)) == width else (width,)
            return flat.reshape(rows, *extents)
    arrays = list(column.to_pandas())
    return make_object_array(arrays) if by_row else stack(arrays, name)


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _to_extents(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if extent is None else extent for extent in shape)


def stack(values: Sequence[Any] | Array, name: str) -> Array:
    """Return arrays of rows as one array [rows, ...]; DataError if their shapes differ, or one is null."""
    missing = next((number for number, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise DataError(f"column {name!r} holds null instead of an array in row {missing} of these {len(values)} rows.")
    arrays = [numpy.asarray(value) for value in values]
    try:
        return numpy.stack(arrays) if arrays else numpy.zeros((0, 0))
    except ValueError:
        shapes = sorted({str(list(array.shape)) for array in arrays})
        raise DataError(
            f"column {name!r} holds arrays of different shapes: {', '.join(shapes[:5])}. Rows of a batch need one "
            "shape: pad or cut them in a TransformSpec, or before the data set is written."
        ) from None


def make_column(items: Array, name: str, shape: tuple[int | None, ...] | None) -> Array:
    """Return a column that a user's function returned, as an array [rows, ...].

    Raises:
        DataError: values have different shapes or types, or not the shape that was declared.
    """
    from pandas.api.types import infer_dtype

    if items.dtype != object:
        return _make_writable(items)
    first = next((item for item in items if item is not None), None)
    if is_array(first):
        array = stack(items, name)
        # Petastorm, too, takes any length of declared vectors.
        if shape and len(shape) > 1 and not fits_shape(array.shape[1:], shape):
            raise DataError(
                f"transform_spec declares column {name!r} with the shape {list(shape)}, and its function returned "
                f"arrays of {list(array.shape[1:])}."
            )
        return array
    if infer_dtype(items, skipna=False) in ("string", "bytes", "decimal"):
        return items.astype(numpy.str_) if isinstance(first, str) else _make_writable(items)
    try:
        return make_array(pyarrow.array(items, from_pandas=True), name)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} of what transform_spec's function returned: {error}") from error


def fits_shape(shape: Sequence[int], declared: Sequence[int | None]) -> bool:
    """Return whether an array of this shape is one that was declared."""
    pairs = zip(declared, shape, strict=False)
    return len(shape) == len(declared) and all(want in (None, extent) for want, extent in pairs)


def is_array(value: Any) -> bool:
    """Return whether a row's value is an array of any kind: a list, a tuple, numpy's, a tensor."""
    return isinstance(value, (list, tuple, numpy.ndarray)) or (hasattr(value, "__array__") and numpy.ndim(value) > 0)


def make_object_array(values: Sequence[Any]) -> Array:
    """Return [rows] of objects; numpy would make a matrix of lists."""
    result: Array = numpy.empty(len(values), object)
    for number, value in enumerate(values):
        result[number] = value
    return result


def check_no_null(column: pyarrow.ChunkedArray, name: str, place: str) -> None:
    """Raise DataError if a value of a column, or within its arrays, is null; the text has the place of the rows."""
    count = column.null_count
    if is_list(column.type):
        count += sum(chunk.flatten().null_count for chunk in column.chunks)
    if count:
        raise DataError(
            f"column {name!r} holds {count} null in {place}, and tensors have none: fill or drop such rows, in "
            "a TransformSpec or before."
        )


def is_fixed_width(column: pyarrow.Array) -> bool:
    """Return whether a column holds numbers, truth values or moments, and no null: pandas has the same arrays."""
    kind = column.type
    is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
    return not column.null_count and (is_number or (pyarrow.types.is_timestamp(kind) and kind.tz is None))


def count_rows(page: Page) -> int:
    """Return the number of rows of a page."""
    return len(next(iter(page.values())))


def slice_page(page: Page, start: int, stop: int) -> Page:
    """Return some rows of a page."""
    return {name: array[start:stop] for name, array in page.items()}


def join_pages(pages: Sequence[Page]) -> Page:
    """Return pages one after the other, as one; DataError if arrays of a column have different shapes."""
    if len(pages) == 1:
        return pages[0]
    result = {}
    for name in pages[0]:
        try:
            result[name] = numpy.concatenate([page[name] for page in pages])
        except ValueError:
            shapes = sorted({str(list(page[name].shape[1:])) for page in pages})
            raise DataError(
                f"column {name!r} has rows of different shapes: {', '.join(shapes)}. Rows of a batch need one shape: "
                "pad or cut them in a TransformSpec, or before the data set is written."
            ) from None
    return result


def _make_writable(array: Array) -> Array:
    """Return a contiguous array that may be written to: PyTorch takes no rows in reverse."""
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()
