"""Bytes in a column, images above all, as arrays: a function of the user's, which is called once for each row."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError


@dataclass(frozen=True)
class Decoder:
    """Makes arrays of a column's bytes. It is sent to the ranks, and to Spark's workers.

    Attributes:
        name: of the column, for messages.
        function: from bytes to what numpy makes an array of; all rows' have one shape and type.
        shape: of a row's array; None: that of the first row.
        dtype: of the arrays as they are kept, one of `choose_kept_dtype`; None: likewise.
    """

    name: str
    function: Callable[[bytes], Any]
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    @classmethod
    def from_training(cls, name: str, function: Callable[[bytes], Any], kind: str) -> Decoder:
        """Return the decoder of a training, whose arrays were of this kind.

        Args:
            kind: as in `Field.decoded`; a type alone leaves the shape open, and nothing both.
        """
        known = numpy.dtype(kind or None)
        return cls(name, function, known.shape if "(" in kind else None, known.base.name if kind else None)

    def decode(self, column: pyarrow.Array, row: int = 0, source: str = "this rank's rows") -> tuple[Decoder, Array]:
        """Decode some rows.

        Args:
            column: [rows] of binary.
            row: the number of its first one among those of `source`, for messages.
            source: the rows that these belong to.

        Returns:
            The decoder with shape and type, and [rows, *shape]: zeros where there is null.

        Raises:
            DataError: the function raised, or returned another shape or type than before; the text has its traceback.
        """
        known = self
        result: Array | None = None
        for index, value in enumerate(column.to_pylist()):
            if value is None:
                continue
            place = f"row {row + index} of {source}"
            array = self._call(value, place)
            if known.shape is None or known.dtype is None:
                dtype = choose_kept_dtype(array.dtype, f"the decoder of column {self.name!r}")
                known = replace(known, shape=known.shape or array.shape, dtype=known.dtype or dtype)
            self._check(array, known, place)
            if result is None:
                result = numpy.zeros((len(column), *array.shape), known.dtype)
            result[index] = array
        if result is None:
            result = numpy.zeros((len(column), *(known.shape or ())), known.dtype or "float32")
        return known, result

    def _call(self, value: bytes, place: str) -> Array:
        try:
            return numpy.asarray(self.function(value))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the thread that reads rows, without a message
            raise DataError(
                f"the decoder of column {self.name!r} failed in {place}, on {len(value)} bytes: "
                f"{describe_failure(error)}"
            ) from error

    def _check(self, array: Array, known: Decoder, place: str) -> None:
        if array.shape != known.shape:
            raise DataError(
                f"the decoder of column {self.name!r} returned an array of shape {list(array.shape)} in {place}, and "
                f"{list(known.shape or ())} before. All rows need one: resize or crop there."
            )
        if not array.size:
            raise DataError(f"the decoder of column {self.name!r} returned an empty array in {place}.")
        if not numpy.can_cast(array.dtype, known.dtype or "", "same_kind"):
            raise DataError(
                f"the decoder of column {self.name!r} returned an array of {array.dtype} in {place}, and of "
                f"{known.dtype} before."
            )


def choose_kept_dtype(dtype: numpy.dtype[Any], what: str) -> str:
    """Return the type in which arrays that a function gave are kept: uint8 (which bool is, too), int64, float32 or
    float64.

    Args:
        what: gave them, for the message.

    Raises:
        DataError: there is none.
    """
    if dtype.kind == "b" or dtype == numpy.uint8:
        return "uint8"
    if dtype.kind in "iu":
        return "int64"
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return "float64" if dtype.itemsize == 8 else "float32"
    raise DataError(f"{what} returned arrays of {dtype}: numbers are needed.")


def describe_failure(error: BaseException) -> str:
    """Return the error of a user's function, with its traceback from there on."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
    return f"{type(error).__name__}: {error}\n{lines}"


def to_lists(values: Array, valid: pyarrow.Array) -> pyarrow.Array:
    """Return [rows] of lists, from [rows, *shape]; of plain numbers if the shape is ().

    Args:
        valid: [rows] of truth; null where it is false.
    """
    flat = pyarrow.array(values.reshape(-1))
    result = flat
    if values.ndim > 1:
        result = pyarrow.FixedSizeListArray.from_arrays(flat, int(numpy.prod(values.shape[1:])))
    if pyarrow.compute.all(valid).as_py() in (True, None):
        return result
    return pyarrow.compute.if_else(valid, result, pyarrow.scalar(None, result.type))
