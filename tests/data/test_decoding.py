"""Decoders: shapes and types of the first array, null, and what a function may not return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pyarrow
import pytest

from spark_estimator.data.decoding import Decoder, choose_kept_dtype, describe_failure, to_lists
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.errors import DataError


def pixels(content: bytes) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(content, numpy.uint8).reshape(1, -1)


def test_the_first_array_fixes_shape_and_type() -> None:
    known, arrays = Decoder("image", pixels).decode(pyarrow.array([None, b"ab", b"cd"]))
    assert (known.shape, known.dtype, arrays.dtype) == ((1, 2), "uint8", numpy.uint8)
    assert arrays.tolist() == [[[0, 0]], [[97, 98]], [[99, 100]]], "null is zeros"
    with pytest.raises(DataError, match=r"array of shape \[1, 3\] in row 41 of this rank's rows, and \[1, 2\] before"):
        known.decode(pyarrow.array([b"ab", b"abc"]), 40)
    with pytest.raises(DataError, match=r"array of shape \[1, 3\] in row 1 of a batch of rows, and \[1, 2\] before"):
        encoder = RowEncoder(("image",), decoders={"image": known})
        encoder.to_numbers(pyarrow.RecordBatch.from_pydict({"image": [b"ab", b"abc"]}), source="a batch of rows")


def test_rows_of_null_alone_leave_the_shape_open() -> None:
    known, arrays = Decoder("image", pixels).decode(pyarrow.array([None, None], pyarrow.binary()))
    assert (known.shape, known.dtype) == (None, None)
    assert (arrays.shape, arrays.dtype) == ((2,), numpy.float32)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda content: numpy.zeros(0), "returned an empty array in row 5"),
        (lambda content: "text", "the decoder of column 'image' returned arrays of <U4: numbers are needed"),
        (lambda content: 1 / 0, r"(?s)failed in row 5 .* on 2 bytes: ZeroDivisionError: division by zero\nTraceback"),
    ],
)
def test_what_a_function_may_not_do(function: Callable[[bytes], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Decoder("image", function).decode(pyarrow.array([b"ab"]), 5)


def test_a_later_array_of_another_type() -> None:
    decoder = Decoder("image", lambda content: numpy.array([0.5]), shape=(1,), dtype="int64")
    with pytest.raises(DataError, match="array of float64 in row 0 of this rank's rows, and of int64 before"):
        decoder.decode(pyarrow.array([b"ab"]))


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        ("bool", "uint8"),
        ("uint8", "uint8"),
        ("int8", "int64"),
        ("uint64", "int64"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_types_that_are_kept(dtype: str, kept: str) -> None:
    assert choose_kept_dtype(numpy.dtype(dtype), "the function") == kept


def test_a_traceback_begins_in_the_user_s_function() -> None:
    def fails() -> None:
        raise KeyError("nothing")

    try:
        fails()
    except KeyError as error:
        text = describe_failure(error)
    assert text.startswith("KeyError: 'nothing'\nTraceback") and "in fails" in text
    assert text.count("File ") == 1, "the caller's lines are left out"
    assert describe_failure(ValueError("never raised")) == "ValueError: never raised\nValueError: never raised"


def test_lists_with_null() -> None:
    valid = pyarrow.array([True, False])
    lists = to_lists(numpy.arange(8).reshape(2, 2, 2), valid)
    assert lists.to_pylist() == [[0, 1, 2, 3], None]
    assert to_lists(numpy.array([1.5, 2.5]), valid).to_pylist() == [1.5, None]
    assert to_lists(numpy.arange(4).reshape(2, 2), pyarrow.array([True, True])).null_count == 0
