"""What one tensor of a batch is made of: columns, a numpy type, the shape of a row; and Arrow's arrays as such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.errors import DataError

Array = numpy.ndarray[Any, numpy.dtype[Any]]

# Rows that are written into a row-major matrix at a time, so that a column's piece of it stays in the cache.
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Field:
    """One tensor of each batch.

    Attributes:
        names: the columns as the user calls them, for messages.
        columns: the same in the Arrow batches; their values stand side by side in a row.
        widths: values a row of each column; 1 for a scalar.
        dtype: of the tensor, in numpy's words: ``float32``.
        shape: of one row; () for a scalar. Its product is the sum of `widths`.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    widths: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...] = ()

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
    def width(self) -> int:
        """Values a row."""
        return sum(self.widths)

    @property
    def row_bytes(self) -> int:
        """Bytes a row."""
        return self.width * numpy.dtype(self.dtype).itemsize


def matrix_of(batch: pyarrow.RecordBatch, field: Field, row: int = 0) -> Array:
    """The rows of one batch as a matrix.

    Args:
        row: the number of the batch's first row, for messages.

    Returns:
        [rows, width] contiguous, of the field's dtype. It may share the batch's memory.

    Raises:
        DataError: a value is missing, an array has another length, a number does not fit the type.
    """
    pieces = [
        _values(batch.column(column), name, width, field.dtype, row)
        for name, column, width in zip(field.names, field.columns, field.widths, strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    whole = numpy.empty((batch.num_rows, field.width), field.dtype)
    for start in range(0, batch.num_rows, _BLOCK_ROWS):
        place = 0
        for piece in pieces:
            rows = piece[start : start + _BLOCK_ROWS]
            whole[start : start + len(rows), place : place + piece.shape[1]] = rows
            place += piece.shape[1]
    return whole


def widths_of(batch: pyarrow.RecordBatch, columns: Sequence[str]) -> list[int | None]:
    """Values a row of each column; None where rows differ, or hold no array at all."""
    widths: list[int | None] = []
    for column in columns:
        array = batch.column(column)
        if not _is_list(array.type):
            widths.append(1)
            continue
        lengths = set(pyarrow.compute.list_value_length(array).to_pylist())
        widths.append(lengths.pop() if len(lengths) == 1 else None)
    return widths


def _values(array: pyarrow.Array, name: str, width: int, dtype: str, row: int) -> Array:
    """[rows, width] of one column."""
    rows = len(array)
    if array.null_count:
        raise DataError(
            f"column {name!r} holds null in row {row + _first(array.is_null())} of this rank's rows. Fill or drop such "
            "rows (df.fillna, df.dropna), or say nulls='drop' or a number for nulls."
        )
    if _is_list(array.type):
        lengths = pyarrow.compute.list_value_length(array)
        if rows and not pyarrow.compute.all(pyarrow.compute.equal(lengths, width)).as_py():
            at = _first(pyarrow.compute.not_equal(lengths, width))
            raise DataError(
                f"column {name!r} has {width} values in the first rows, but {lengths[at].as_py()} in row {row + at} of "
                "this rank's rows. All rows need arrays of one length: pad or cut them."
            )
        array = array.flatten()
        if array.null_count:
            at = _first(array.is_null()) // max(1, width)
            raise DataError(f"column {name!r} holds null inside of the array in row {row + at} of this rank's rows.")
    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.uint8())
    values: Array = array.to_numpy(zero_copy_only=False)
    return _converted(values, name, width, dtype, row).reshape(rows, width)


def _converted(values: Array, name: str, width: int, dtype: str, row: int) -> Array:
    if values.dtype == numpy.dtype(dtype):
        return values
    if values.dtype.kind == "f" and numpy.dtype(dtype).kind == "i":
        with numpy.errstate(invalid="ignore"):
            converted = values.astype(dtype)
        wrong = converted != values
        if wrong.any():
            at = int(wrong.argmax())
            raise DataError(
                f"column {name!r} holds whole numbers in the first rows, so its tensor is {dtype}; but row "
                f"{row + at // max(1, width)} of this rank's rows holds {values[at]!r}."
            )
        return converted
    return values.astype(dtype)


def _is_list(kind: pyarrow.DataType) -> bool:
    return bool(
        pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    )


def _first(mask: pyarrow.Array) -> int:
    """Where the first true stands."""
    return int(numpy.asarray(mask).argmax())
