"""Rows that ranks keep unchanged, for a function that is called for each row in each epoch.

A spool has rows of one size. A row's values are therefore written as bytes, as many for each row as the longest has,
and read back when a batch is made.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.fields import Array, Field, is_list
from spark_estimator.data.numbers import get_kind, to_numbers
from spark_estimator.data.row_encoder import RowEncoder, read_marks
from spark_estimator.errors import DataError

#: The most bytes of a value besides those of a text or an array, and of a row besides its values.
_VALUE_BYTES, _ROW_BYTES = 16, 16
#: Without references between equal values: the same values have the same bytes.
_FORMAT = 2


@dataclass(frozen=True)
class KeptRows(RowEncoder):
    """Instead of the transformation's result, ``c0`` has the bytes of each row. It is sent to the ranks.

    Attributes:
        columns: [columns] the arguments of the function.
        fields: the field of the bytes.
        types: [columns] the arguments' Arrow types, in which they are read back.
        then: encodes the rows of a batch.
    """

    types: Mapping[str, pyarrow.DataType] = field(default_factory=dict)
    then: RowEncoder | None = None

    @classmethod
    def of(cls, types: Mapping[str, pyarrow.DataType], width: int, then: RowEncoder) -> KeptRows:
        """Return what keeps the arguments of a function.

        Args:
            types: of the arguments, by name.
            width: the most bytes of a row.
            then: encodes the rows of a batch; its column of marks is kept apart.
        """
        fields = (Field(("the rows",), ("c0",), (width,), "uint8", (width,)),)
        return cls(tuple(types), fields, marker=then.marker, types=types, then=replace(then, marker=None))

    @property
    def untransformed(self) -> KeptRows:
        """Return the same rows without the function."""
        assert self.then is not None
        return replace(self, then=self.then.untransformed)

    def with_encoder(self, then: RowEncoder) -> KeptRows:
        """Return the same rows, whose batches another encoder encodes; its column of marks is kept apart."""
        return replace(self, then=replace(then, marker=None))

    def to_numbers(
        self,
        batch: pyarrow.RecordBatch,
        row: int = 0,
        source: str = "this rank's rows",
        dtypes: Sequence[str] | None = None,
    ) -> pyarrow.RecordBatch:
        """Return the rows' bytes; see `RowEncoder.to_numbers`."""
        values = [_to_plain(name, batch.column(name)) for name in self.columns]
        width = self.fields[0].width
        matrix = numpy.zeros((batch.num_rows, width), numpy.uint8)
        for number, items in enumerate(zip(*values, strict=True)):
            content = marshal.dumps(items, _FORMAT)
            if len(content) > width:
                raise DataError(f"row {row + number} of {source} has grown since the longest row was measured.")
            matrix[number, : len(content)] = numpy.frombuffer(content, numpy.uint8)
        arrays = [pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(matrix.reshape(-1)), width)]
        names = ["c0"]
        if self.marker is not None:
            arrays.append(read_marks(batch.column(self.marker)))
            names.append("marker")
        return pyarrow.RecordBatch.from_arrays(arrays, names=names)

    def encode_kept(self, content: Array) -> tuple[Array, ...]:
        """Return matrices [rows, width] of the fields of `then`, by calling the function for each row.

        Args:
            content: [rows, width] bytes.
        """
        assert self.then is not None
        rows = [marshal.loads(row.data) for row in content]  # written by this job
        columns = [
            _make_column([row[number] for row in rows], self.types[name]) for number, name in enumerate(self.columns)
        ]
        raw = pyarrow.RecordBatch.from_arrays(columns, names=list(self.columns))
        return tuple(numpy.require(matrix, requirements="W") for matrix in self.then.encode(raw))


def estimate_row_bytes(lengths: int, columns: int) -> int:
    """Return the most bytes of a row.

    Args:
        lengths: of its texts and arrays, in bytes.
        columns: how many values it has.
    """
    return _ROW_BYTES + _VALUE_BYTES * columns + lengths


def find_longest_row(batch: pyarrow.RecordBatch) -> int:
    """Return the most bytes that the texts and arrays of one of these rows have."""
    total = numpy.zeros(batch.num_rows, numpy.int64)
    for array in batch.columns:
        array = _to_numbers(array)
        if is_list(array.type):
            item_bytes = numpy.dtype(array.type.value_type.to_pandas_dtype()).itemsize
            lengths = pyarrow.compute.list_value_length(array).cast(pyarrow.int64())
            sizes = pyarrow.compute.multiply(lengths, item_bytes)
        elif _is_text(array.type):
            sizes = pyarrow.compute.binary_length(array).cast(pyarrow.int64())
        else:
            continue
        total += numpy.asarray(pyarrow.compute.fill_null(sizes, 0))
    return int(total.max(initial=0))


def check_kept(name: str, kind: pyarrow.DataType) -> None:
    """Raise DataError for a column whose values can't be kept as bytes.

    Raises:
        DataError: it has values other than numbers, times, texts, bytes and arrays of numbers.
    """
    inner = kind.value_type if is_list(kind) else kind
    number = pyarrow.types.is_integer(inner) or pyarrow.types.is_floating(inner) or pyarrow.types.is_boolean(inner)
    time = pyarrow.types.is_temporal(kind) and not pyarrow.types.is_duration(kind)
    vector = pyarrow.types.is_struct(kind) and get_kind(kind) == "vector"
    if not (number or time or vector or _is_text(kind) or pyarrow.types.is_decimal(kind)):
        raise DataError(
            f"column {name!r} is of type {get_kind(kind)}, which a transformation_fn that takes rows can't receive: "
            "numbers, times, texts, bytes and arrays of numbers are possible."
        )


def _to_numbers(array: pyarrow.Array) -> pyarrow.Array:
    if pyarrow.types.is_decimal(array.type) or pyarrow.types.is_struct(array.type):
        return to_numbers(array)
    return array


def get_read_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of a column that is read back: decimals are floats, and vectors arrays of floats."""
    return _to_numbers(pyarrow.array([], kind)).type


def _to_plain(name: str, array: pyarrow.Array) -> list[Any]:
    """Return [rows] values that `marshal` writes."""
    array = _to_numbers(array)
    kind = array.type
    if is_list(kind):
        if not pyarrow.types.is_floating(kind.value_type) and array.flatten().null_count:
            raise DataError(f"column {name!r} holds null inside of an array, for which only floats have a value.")
        dtype = kind.value_type.to_pandas_dtype()
        return [
            None if value is None else numpy.asarray(value, dtype).tobytes()
            for value in array.to_pandas(ignore_metadata=True)
        ]
    if pyarrow.types.is_temporal(kind):
        array = array.cast(pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64())
    values: list[Any] = array.to_pylist()
    return values


def _make_column(values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    if is_list(kind):
        dtype = kind.value_type.to_pandas_dtype()
        arrays = [None if value is None else numpy.frombuffer(value, dtype) for value in values]
        return pyarrow.array(arrays, pyarrow.large_list(kind.value_type))
    if pyarrow.types.is_temporal(kind):
        return pyarrow.array(values, pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()).cast(kind)
    return pyarrow.array(values, kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )
