"""Rows that are kept as bytes, and are read back unchanged."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pytest

from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows, check_kept, estimate_row_bytes, find_longest_row, get_read_type
from spark_estimator.data.row_encoder import RowEncoder
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


def kept(batch: pyarrow.RecordBatch, then: RowEncoder | None = None) -> KeptRows:
    types = {field.name: get_read_type(field.type) for field in batch.schema}
    width = estimate_row_bytes(find_longest_row(batch), batch.num_columns)
    return KeptRows.of(types, width, then or RowEncoder(()))


def test_values_come_back_as_they_were() -> None:
    seen: list[dict[str, Any]] = []

    def function(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return {"x": 1.0}

    then = RowEncoder(
        ("x",),
        (Field(("x",), ("c0",), (1,), "float32"),),
        marker="marker",
        transformation=Transformation(function),
        transformation_columns=tuple(COLUMNS),
    )
    rows = kept(BATCH, then)
    batch = rows.to_numbers(BATCH)
    assert batch.schema.names == ["c0", "marker"] and batch.column("marker").to_pylist() == [False, True, False]
    assert set(rows.read) == set(COLUMNS)
    (made,) = rows.encode_kept(*rows.make_matrices(batch))
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
    then = RowEncoder(("x",), transformation=Transformation(function), transformation_columns=("n",))
    then, _ = then.apply(batch)
    # marks are read once, when the rows are kept
    fitted = replace(then.with_fields([Field(("x",), ("c0",), (1,), "float32")]), marker="held")
    rows = kept(batch, then).with_encoder(fitted)
    (content,) = rows.encode(batch)
    calls.clear()
    epochs = [rows.encode_kept(content)[0].tolist() for _ in range(2)]
    assert epochs == [[[1.0], [2.0]], [[3.0], [4.0]]] and calls == [5, 6, 5, 6]


def test_equal_rows_have_equal_bytes() -> None:
    text = "x" * 3
    batch = pyarrow.RecordBatch.from_pydict({"a": [text, "xxx"], "b": ["xxx", text]})
    (content,) = kept(batch).encode(batch)
    assert content[0].tolist() == content[1].tolist()


def test_a_row_that_does_not_fit_is_refused() -> None:
    rows = KeptRows.of(kept(BATCH).types, 20, RowEncoder(()))
    with pytest.raises(DataError, match="row 5 of this rank's rows has grown"):
        rows.to_numbers(BATCH.slice(1), 5)


def test_null_inside_of_an_array_of_whole_numbers_is_refused() -> None:
    """It would become the smallest one."""
    for values in ([[1, 2], [None, 3]], [[True], [None]]):
        rows = pyarrow.RecordBatch.from_pydict({"v": values})
        with pytest.raises(DataError, match="column 'v' holds null inside of an array"):
            kept(rows).to_numbers(rows)


def test_types() -> None:
    for column in BATCH.schema:
        check_kept(column.name, column.type)
    for kind in (pyarrow.list_(pyarrow.string()), pyarrow.struct({"a": pyarrow.int64()})):
        with pytest.raises(
            DataError, match=r"column 'c' is of type .*, which a transformation_fn that takes rows can't"
        ):
            check_kept("c", kind)
