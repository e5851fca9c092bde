"""Rows that are kept as bytes, and are read back unchanged."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pytest

from spark_estimator.data.fields import Field, matrix_of
from spark_estimator.data.kept_rows import KeptRows, bytes_of_row, check_kept, lengths_of, read_back_as
from spark_estimator.data.preparation import Preparation
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError

COLUMNS: dict[str, Any] = {
    "text": pyarrow.array(["short", "a longer text, with \u00fc", None]),
    "binary": pyarrow.array([b"\x00\xff", b"", b"xyz"]),
    "v": pyarrow.array([[1.0], [2.0, 3.0], []], pyarrow.list_(pyarrow.float32())),
    "n": pyarrow.array([1, -(1 << 62), None], pyarrow.int64()),
    "b": pyarrow.array([True, False, None]),
    "when": pyarrow.array([datetime.datetime(2026, 1, 2), None, None], pyarrow.timestamp("us")),
    "price": pyarrow.array([decimal.Decimal("0.25"), None, decimal.Decimal("1.00")]),
    "marker": pyarrow.array([0, 1, 0]),
}
BATCH = pyarrow.RecordBatch.from_pydict(COLUMNS)


def kept(batch: pyarrow.RecordBatch, then: Preparation | None = None, marker: str | None = None) -> KeptRows:
    types = {field.name: read_back_as(field.type) for field in batch.schema}
    width = bytes_of_row(lengths_of(batch), batch.num_columns)
    return KeptRows(tuple(types), marker, types=types, width=width, then=then)


def test_values_come_back_as_they_were() -> None:
    seen: list[dict[str, Any]] = []

    def function(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return {"x": 1.0}

    then = Preparation(("x",), transformation=Transformation(function), transformation_columns=tuple(COLUMNS))
    rows = kept(BATCH, then, "marker")
    batch = rows.batch(BATCH, ["uint8"])
    assert batch.schema.names == ["c0", "marker"] and batch.column("marker").to_pylist() == [False, True, False]
    assert set(rows.read) == set(COLUMNS)
    matrix = matrix_of(batch, rows.fields[0])
    (made,) = rows.matrices(matrix, [Field(("x",), ("c0",), (1,), "float32")])
    assert made.tolist() == [[1.0], [1.0], [1.0]] and made.flags.writeable
    first, second, third = seen[-3:]
    assert (first["text"], second["text"], third["text"]) == ("short", "a longer text, with \u00fc", None)
    assert (first["binary"], third["binary"]) == (b"\x00\xff", b"xyz")
    assert second["v"].tolist() == [2.0, 3.0] and second["v"].dtype == numpy.float32 and third["v"].tolist() == []
    assert second["n"] == -(1 << 62) and third["n"] is None and first["b"] == True and first["price"] == 0.25  # noqa: E712
    assert str(first["when"]).startswith("2026-01-02")


def test_the_function_runs_for_each_row_again_in_each_epoch() -> None:
    calls: list[int] = []

    def function(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(int(row["n"]))
        return {"x": float(len(calls))}

    batch = pyarrow.RecordBatch.from_pydict({"n": pyarrow.array([5, 6])})
    then = Preparation(("x",), transformation=Transformation(function), transformation_columns=("n",))
    then, _ = then.passed(batch)
    rows = kept(batch, then)
    content = matrix_of(rows.batch(batch, ["uint8"]), rows.fields[0])
    field = Field(("x",), ("c0",), (1,), "float32")
    calls.clear()
    epochs = [rows.matrices(content, [field])[0].tolist() for _ in range(2)]
    assert epochs == [[[1.0], [2.0]], [[3.0], [4.0]]] and calls == [5, 6, 5, 6]


def test_equal_rows_have_equal_bytes() -> None:
    text = "x" * 3
    batch = pyarrow.RecordBatch.from_pydict({"a": [text, "xxx"], "b": ["xxx", text]})
    content = matrix_of(kept(batch).batch(batch, ["uint8"]), kept(batch).fields[0])
    assert content[0].tolist() == content[1].tolist()


def test_a_row_that_does_not_fit_is_refused() -> None:
    rows = replace(kept(BATCH), width=20)
    with pytest.raises(DataError, match="row 5 of this rank's rows has grown"):
        rows.batch(BATCH.slice(1), ["uint8"], 5)


def test_types() -> None:
    for column in BATCH.schema:
        check_kept(column.name, column.type)
    for kind in (pyarrow.list_(pyarrow.string()), pyarrow.struct({"a": pyarrow.int64()})):
        with pytest.raises(
            DataError, match=r"column 'c' is of type .*, which a transformation_fn that takes rows can't"
        ):
            check_kept("c", kind)
