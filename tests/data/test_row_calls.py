"""A function that takes and returns a dict for each row."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import torch

from spark_estimator.data.numbers import to_numbers
from spark_estimator.data.row_calls import call_by_row, to_rows
from spark_estimator.errors import DataError


def test_a_row_has_numpys_values_and_texts() -> None:
    first, second = to_rows(
        {
            "text": pyarrow.array(["a", None]),
            "label": pyarrow.array([1, 2], pyarrow.int32()),
            "price": pyarrow.array([decimal.Decimal("0.5"), decimal.Decimal("1.5")]),
            "v": pyarrow.array([[1.0, 2.0], [3.0]], pyarrow.list_(pyarrow.float32())),
            "image": [numpy.ones(2), None],
        }
    )
    assert first["text"] == "a" and type(first["label"]) is numpy.int32 and first["price"] == 0.5
    assert first["v"].dtype == numpy.float32 and first["v"].tolist() == [1.0, 2.0] and first["image"].tolist() == [1, 1]
    assert second["text"] is None and second["image"] is None


@pytest.mark.parametrize("values", [[1], [1, 2], [1, None], [None, 1]])
@pytest.mark.parametrize("kind", ["date32", "date64", "timestamp", "int64", "float32", "bool_"])
def test_a_value_is_the_same_beside_null(kind: str, values: list[int | None]) -> None:
    arrow = pyarrow.timestamp("us", "UTC") if kind == "timestamp" else getattr(pyarrow, kind)()
    days = [None if value is None else datetime.date(1970, 1, 1 + value) for value in values]
    column = pyarrow.array(days, arrow) if "date" in kind else pyarrow.array(values).cast(arrow)
    alone = column.drop_null().slice(0, 1)
    rows, lone_row = to_rows({"x": column}), to_rows({"x": alone})[0]
    number = next(row["x"] for row in rows if row["x"] is not None)
    assert type(number) is type(lone_row["x"]) and number == lone_row["x"] and number.dtype == lone_row["x"].dtype
    returned = call_by_row(lambda row: row, rows, [], 0)["x"]
    made = pyarrow.array(pandas.Series(returned), from_pandas=True)
    assert made.is_null().to_pylist() == [value is None for value in values]
    assert made.type.id == column.type.id or kind in ("float32", "date64")
    assert to_numbers(made).cast("float64").to_pylist() == to_numbers(column).cast("float64").to_pylist()


def test_large_whole_numbers_stay_as_they_are_beside_null() -> None:
    large = (1 << 60) + 1
    returned = call_by_row(lambda row: row, to_rows({"x": pyarrow.array([large, None])}), [], 0)["x"]
    assert pyarrow.array(pandas.Series(returned), from_pandas=True).to_pylist() == [large, None]
    with pytest.raises(DataError, match="column 'x' holds null, and whole numbers beyond 2"):
        to_rows({"x": pyarrow.array([[large], [None, 1]])})


def test_tensors_become_arrays_and_numbers() -> None:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        tensor = torch.tensor(row["x"], requires_grad=True)
        return {"scalar": tensor, "array": tensor.repeat(2), "long": torch.tensor(3), "text": "t", "x": 0}

    results = call_by_row(function, [{"x": 1.0}, {"x": 2.0}], ["x"], 0)
    assert list(results) == ["scalar", "array", "long", "text"]
    scalars: Any = results["scalar"]
    assert scalars.dtype == numpy.float32 and scalars.tolist() == [1.0, 2.0]
    assert [value.tolist() for value in results["array"]] == [[1.0, 1.0], [2.0, 2.0]]
    assert results["text"] == ["t", "t"]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda row: row["y"], r"failed on row 7 of this rank's rows: KeyError"),
        (lambda row: row if row["x"] < 2 else None, r"a dict for the first row, and NoneType for row 8"),
        (lambda row: {str(row["x"]): 1}, r"returned '2' for row 8 of this rank's rows, and '1' before"),
    ],
)
def test_what_is_refused(function: Callable[[Any], Any], error: str) -> None:
    with pytest.raises(DataError, match=error):
        call_by_row(function, [{"x": 1}, {"x": 2}], [], 7)
