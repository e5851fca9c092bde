"""Values of columns as numpy arrays; `make test-petastorm` compares them with petastorm's."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy
import pyarrow
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.pages import make_array, make_column, make_object_array

DAYS = [datetime.date(2020, 1, 2), datetime.date(1960, 2, 29)]
TIMES = [datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.datetime(1960, 1, 1)]


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "expected"),
    [
        ([1, 2], pyarrow.uint16(), "uint16", [1, 2]),
        ([1, None], pyarrow.int64(), "float64", [1.0, None]),
        ([True, False], pyarrow.bool_(), "bool", [True, False]),
        ([True, None], pyarrow.bool_(), "object", [True, None]),
        (["a", "bcd"], pyarrow.string(), "<U3", ["a", "bcd"]),
        (["a", None], pyarrow.string(), "object", ["a", None]),
        ([b"a", b""], pyarrow.binary(), "object", [b"a", b""]),
        ([Decimal("1.50"), Decimal("-2.25")], pyarrow.decimal128(5, 2), "object", [Decimal("1.50"), Decimal("-2.25")]),
        (TIMES, pyarrow.timestamp("us"), "datetime64[us]", TIMES),
        (TIMES, pyarrow.timestamp("us", "Europe/Berlin"), "datetime64[us]", TIMES),
        (DAYS, pyarrow.date32(), "object", DAYS),
        ([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int8()), "int8", [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int8(), 2), "int8", [[1, 2], [3, 4]]),
        ([["a", "b"], ["c", "d"]], pyarrow.list_(pyarrow.string()), "object", [["a", "b"], ["c", "d"]]),
        ([[], []], pyarrow.list_(pyarrow.float32()), "float32", [[], []]),
    ],
)
def test_values(values: list[Any], kind: pyarrow.DataType, dtype: str, expected: list[Any]) -> None:
    array = make_array(pyarrow.array(values, kind), "x")
    assert array.dtype == numpy.dtype(dtype) and array.flags.writeable
    assert [None if item != item else item for item in array.tolist()] == expected


def test_values_of_single_rows() -> None:
    null = make_array(pyarrow.array([1, None], pyarrow.int64()), "x", by_row=True)
    assert null.tolist() == [1, None] and type(null[0]) is numpy.int64
    ragged = make_array(pyarrow.array([[1], [2, 3], None]), "x", by_row=True)
    assert [None if item is None else item.tolist() for item in ragged] == [[1], [2, 3], None]
    assert make_array(pyarrow.array(DAYS), "x", by_row=True).dtype == "datetime64[D]"
    with pytest.raises(DataError, match="column 'x' holds null instead of an array in row 1"):
        make_array(pyarrow.array([[1], None]), "x")


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([numpy.ones((2, 3), "float32")] * 4, "float32", (4, 2, 3)),
        ([[1, 2], (3, 4)], "int64", (2, 2)),
        ([1, 2.5], "float64", (2,)),
        (["a", "bc"], "<U2", (2,)),
        ([Decimal(1), Decimal(2)], "object", (2,)),
        ([None, "a"], "object", (2,)),
    ],
)
def test_columns_that_a_function_returned(values: list[Any], dtype: str, shape: tuple[int, ...]) -> None:
    array = make_column(make_object_array(values), "x", None)
    assert array.dtype == numpy.dtype(dtype) and array.shape == shape


def test_columns_that_cannot_be_used() -> None:
    with pytest.raises(DataError, match="column 'x' of what transform_spec's function returned"):
        make_column(make_object_array([1, "a"]), "x", None)
    with pytest.raises(DataError, match=r"arrays of different shapes: \[1\], \[2\]"):
        make_column(make_object_array([[1], [1, 2]]), "x", None)
