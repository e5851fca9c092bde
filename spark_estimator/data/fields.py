"""The columns, numpy type and row shape of one tensor of a batch; and the conversion of Arrow's arrays to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.errors import DataError

Array = numpy.ndarray[Any, numpy.dtype[Any]]

# Rows that are written into a row-major matrix at a time, so that a column's piece of it stays in the cache.
_BLOCK_ROWS = 4096
_HAS_TENSORS = hasattr(pyarrow.RecordBatch, "to_tensor")  # PyArrow 16 and newer


@dataclass(frozen=True)
class Field:
    """One tensor of each batch.

    Attributes:
        names: the columns as the user calls them, for messages.
        columns: the same in the encoded batches; a row has their values side by side.
        widths: values a row of each column; 1 for a scalar.
        dtype: of the tensor, in numpy's words: ``float32``.
        shape: of one row; () for a scalar. Its product is the sum of `widths`.
        padding: [columns] what a row's array that is shorter than its width is filled up with, at its end; None: all
            rows have arrays of just that width. Empty: None for all.
        stored: the type of the values in the spool, where that is a smaller one: ``uint8``; empty: `dtype`.
        times: [columns] ``date`` of one whose numbers are days, ``timestamp_ntz`` of one of times without a zone, ""
            of others; empty: "" for all.
        decoded: [columns] numpy's type of a row's array that a decoder made in the training, with its shape:
            ``(2, 3)uint8``; "" for other columns. Empty: not known.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    widths: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...] = ()
    padding: tuple[float | None, ...] = ()
    stored: str = ""
    times: tuple[str, ...] = field(default=(), repr=False)  # a checkpoint knows the fields of its training by repr
    decoded: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if sum(self.widths) != math.prod(self.shape):
            raise ValueError(
                f"{self.name} has {sum(self.widths)} values a row, which cannot have the shape {list(self.shape)}."
            )

    @property
    def name(self) -> str:
        """For messages."""
        return ", ".join(self.names)

    @property
    def all_times(self) -> tuple[str, ...]:
        """[columns] as `times`."""
        return self.times or ("",) * len(self.columns)

    @property
    def width(self) -> int:
        """Values a row."""
        return sum(self.widths)

    @property
    def row_bytes(self) -> int:
        """Bytes a row."""
        return self.width * numpy.dtype(self.stored_dtype).itemsize

    @property
    def stored_dtype(self) -> str:
        """The type of its matrices."""
        return self.stored or self.dtype


def make_matrix(batch: pyarrow.RecordBatch, field: Field, row: int = 0, source: str = "this rank's rows") -> Array:
    """Return the rows of one batch as a matrix.

    Args:
        row: the number of the batch's first row among those of `source`, for messages.
        source: the rows that the batch belongs to, for messages.

    Returns:
        [rows, width] contiguous, of the field's `stored_dtype`. It may share the batch's memory.

    Raises:
        DataError: a value is missing, an array has another length, a number does not fit the type.
    """
    side_by_side = _make_matrix_of_one_type(batch, field, row, source)
    if side_by_side is not None:
        return side_by_side
    paddings = field.padding or (None,) * len(field.columns)
    pieces = [
        _make_column_matrix(batch.column(column), _Wanted((name,), width, field.stored_dtype, padding, source), row)
        for name, column, width, padding in zip(field.names, field.columns, field.widths, paddings, strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    whole = numpy.empty((batch.num_rows, field.width), field.stored_dtype)
    for start in range(0, batch.num_rows, _BLOCK_ROWS):
        position = 0
        for piece in pieces:
            rows = piece[start : start + _BLOCK_ROWS]
            whole[start : start + len(rows), position : position + piece.shape[1]] = rows
            position += piece.shape[1]
    return whole


def _make_matrix_of_one_type(batch: pyarrow.RecordBatch, field: Field, row: int, source: str) -> Array | None:
    """`make_matrix` in one call of Arrow, for columns of numbers without nulls; None: these are not such columns."""
    if not _HAS_TENSORS or not len(set(field.columns)) == len(field.columns) == field.width > 1:
        return None
    columns = [batch.column(column) for column in field.columns]
    kind = columns[0].type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        return None
    if any(column.type != kind or column.null_count for column in columns):
        return None
    tensor = pyarrow.RecordBatch.from_arrays(columns, names=list(field.columns)).to_tensor()
    wanted = _Wanted(field.names, field.width, field.stored_dtype, None, source)
    return _convert(tensor.to_numpy().reshape(-1), wanted, row, None).reshape(batch.num_rows, field.width)


def find_widths(batch: pyarrow.RecordBatch, columns: Sequence[str]) -> list[int | None]:
    """Values a row of each column; None where rows differ, or hold no array at all."""
    widths: list[int | None] = []
    for column in columns:
        array = batch.column(column)
        if not is_list(array.type):
            widths.append(1)
            continue
        lengths = set(pyarrow.compute.list_value_length(array).to_pylist())
        widths.append(lengths.pop() if len(lengths) == 1 else None)
    return widths


@dataclass(frozen=True)
class _Wanted:
    """The target of one column's values; see `Field`.

    Attributes:
        names: one; or those of scalars that are converted together.
        width, dtype, padding: of the array.
        source: the rows that the column's values are from, for messages.
    """

    names: tuple[str, ...]
    width: int
    dtype: str
    padding: float | None
    source: str

    @property
    def name(self) -> str:
        """For messages about all of it."""
        return self.names[0]

    def get_name(self, position: int) -> str:
        """Return the column of the value at this position, counted over the values of all rows."""
        return self.names[position % len(self.names)]


def _make_column_matrix(array: pyarrow.Array, wanted: _Wanted, row: int) -> Array:
    """[rows, width] of one column."""
    rows, name, width = len(array), wanted.name, wanted.width
    if array.null_count:
        # A column of nothing but nulls has no type.
        of_arrays = is_list(array.type) or width > 1
        raise _make_null_error(name, wanted, row + _find_first(array.is_null()), of_arrays=of_arrays)
    lengths: Array | None = None
    if is_list(array.type):
        array, stored = _split_lists(array)
        if not (stored == width).all():
            lengths = stored
            _check_lengths(lengths, wanted, row)
        if array.null_count:
            at = row + _find_row(_find_first(array.is_null()), width, lengths)
            raise DataError(f"column {name!r} holds null inside of the array in row {at} of {wanted.source}.")
    elif width > 1 and rows:
        raise DataError(
            f"column {name!r} holds single values in {wanted.source}, where each row needs an array of {width}."
        )
    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.uint8())
    values = _convert(array.to_numpy(zero_copy_only=False), wanted, row, lengths)
    if lengths is None:
        return values.reshape(rows, width)
    padded = numpy.full((rows, width), wanted.padding, wanted.dtype)
    padded[numpy.arange(width) < lengths[:, None]] = values
    return padded


def _split_lists(lists: pyarrow.Array) -> tuple[pyarrow.Array, Array]:
    """Return the values of arrays, one after the other, and [rows] the arrays' lengths. None of them may be null."""
    if pyarrow.types.is_fixed_size_list(lists.type):
        return lists.flatten(), numpy.full(len(lists), lists.type.list_size)
    offsets = lists.offsets.to_numpy()
    return lists.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets[1:] - offsets[:-1]


def _make_null_error(name: str, wanted: _Wanted, row: int, *, of_arrays: bool = False, what: str = "null") -> DataError:
    filling, policies = "df.fillna", "nulls='drop' or a number, such as nulls=0.0"
    if of_arrays:  # which df.fillna and numbers leave as they are
        filling = "functions.coalesce(column, functions.array()), and padding=0 for what is empty then"
        policies = "nulls='drop'"
    return DataError(
        f"column {name!r} holds {what} in row {row} of {wanted.source}. Filter these rows (df.dropna) or fill them "
        f"({filling}; for petastorm's loaders also a TransformSpec); for an estimator, you can also set {policies}."
    )


def _check_lengths(lengths: Array, wanted: _Wanted, row: int) -> None:
    """Refuse arrays that have not the length that is wanted, and cannot be filled up to it."""
    wrong = lengths != wanted.width if wanted.padding is None else lengths > wanted.width
    if not wrong.any():
        return
    at = int(wrong.argmax())
    if wanted.padding is None:
        raise DataError(
            f"column {wanted.name!r} has {wanted.width} values in the first rows, but {lengths[at]} in row {row + at} "
            f"of {wanted.source}. All rows need the same number: set padding=0 (or another number) to fill shorter "
            "arrays up, or cut longer ones."
        )
    raise DataError(
        f"column {wanted.name!r} has {lengths[at]} values in row {row + at} of {wanted.source}, and its tensor has "
        f"room for {wanted.width}: padding fills shorter arrays up and cuts nothing off. Cut it (functions.slice), or "
        "train with a larger shape in input_shapes."
    )


def _convert(values: Array, wanted: _Wanted, row: int, lengths: Array | None) -> Array:
    dtype = wanted.dtype
    if values.dtype == numpy.dtype(dtype):
        return values
    if values.dtype.kind == "f" and numpy.dtype(dtype).kind == "i":
        with numpy.errstate(invalid="ignore"):
            converted = values.astype(dtype)
        wrong = converted != values
        if wrong.any():
            at = int(wrong.argmax())
            if numpy.isnan(values[at]) and lengths is None:
                where = row + at // max(1, wanted.width)
                raise _make_null_error(wanted.get_name(at), wanted, where, what="NaN, pandas' null of whole numbers,")
            raise DataError(
                f"column {wanted.get_name(at)!r} holds whole numbers in the first rows, so its tensor is {dtype}; but "
                f"row {row + _find_row(at, wanted.width, lengths)} of {wanted.source} holds {values[at].item()!r}."
            )
        return converted
    converted = values.astype(dtype)
    if dtype == "int64" and values.dtype == numpy.uint64 and (converted < 0).any():
        at = int((converted < 0).argmax())
        raise DataError(
            f"column {wanted.get_name(at)!r} is an int64 in the model, and row "
            f"{row + _find_row(at, wanted.width, lengths)} of {wanted.source} holds {values[at].item()!r}, which is "
            "larger than an int64."
        )
    if dtype == "uint8" and (converted != values).any():
        at = int((converted != values).argmax())
        raise DataError(
            f"column {wanted.get_name(at)!r} holds pixels, 0 to 255, in the first rows; row "
            f"{row + _find_row(at, wanted.width, lengths)} of {wanted.source} holds {values[at].item()!r}."
        )
    return converted


def _find_row(position: int, width: int, lengths: Array | None) -> int:
    """Return the row of a value, counted among the values of all rows."""
    if lengths is None:
        return position // max(1, width)
    return int(numpy.searchsorted(numpy.cumsum(lengths), position, side="right"))


def is_list(kind: pyarrow.DataType) -> bool:
    """Whether it holds arrays of any of Arrow's three forms."""
    return bool(
        pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    )


def replace_values(lists: pyarrow.Array, values: pyarrow.Array) -> pyarrow.Array:
    """Arrays of the same lengths with other values; null where there is no array.

    Args:
        values: of all arrays that are not null, one after the other.
    """
    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(lists), 0).to_numpy()
    offsets = pyarrow.array(numpy.concatenate([[0], numpy.cumsum(lengths, dtype=numpy.int64)]))
    return copy_nulls(lists, pyarrow.LargeListArray.from_arrays(offsets, values))


def copy_nulls(array: pyarrow.Array, result: pyarrow.Array) -> pyarrow.Array:
    """Return the result, with null where the array has one."""
    if not array.null_count:
        return result
    return pyarrow.compute.if_else(array.is_valid(), result, pyarrow.scalar(None, result.type))


def _find_first(mask: pyarrow.Array) -> int:
    """Return the index of the first true."""
    return int(numpy.asarray(mask).argmax())
