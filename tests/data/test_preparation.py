"""From rows to fields: decoders, the transformation, marks for validation, nulls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pytest

from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field
from spark_estimator.data.preparation import Preparation, batch_rows_of, dtypes_of
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError


def batch(**columns: object) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def test_columns_are_read_once_each() -> None:
    assert Preparation(("x", "y", "x"), "y").read == ["x", "y"]
    assert Preparation(("x",), "held", transformation_columns=("word", "held", "word")).read == ["word", "held"]


def test_columns_get_the_names_of_fields() -> None:
    rows = Preparation(("b", "a", "b"), "held").batch(batch(a=[1, 2], b=[0.5, 1.5], held=[1, 0]), ["float32"] * 3)
    assert rows.to_pydict() == {"c0": [0.5, 1.5], "c1": [1, 2], "c2": [0.5, 1.5], "marker": [True, False]}


def test_marks_other_than_zero_and_one_are_null() -> None:
    rows = Preparation(("a",), "held").batch(batch(a=[1, 2, 3, 4], held=[0, 1, 2, None]), ["int64"])
    assert rows.column("marker").to_pylist() == [False, True, None, None]


def test_nulls_are_handled_after_the_functions() -> None:
    """A function may fill them; rows that it leaves with null are dropped."""

    def fill_some(frame: Any) -> Any:
        frame["a"] = frame["a"].fillna(9).where(frame["a"] != 2)
        return frame

    preparation = Preparation(("a",), nulls="drop", transformation=Transformation(fill_some))
    assert preparation.batch(batch(a=[1.0, 2.0, None]), ["float32"]).column("c0").to_pylist() == [1.0, 9.0]


def test_the_transformation_receives_decoded_arrays() -> None:
    decoder = Decoder("image", lambda content: numpy.frombuffer(content, numpy.uint8))

    def mean(frame: Any) -> Any:
        frame["mean"] = [0.0 if image is None else image.mean() for image in frame["image"]]
        return frame[["mean"]]

    preparation = Preparation(
        ("mean",), decoders={"image": decoder}, transformation=Transformation(mean), transformation_columns=("image",)
    )
    known, columns = preparation.passed(batch(image=[b"\x01\x03", None], other=[1, 2]))
    assert columns["mean"].to_pylist() == [2.0, 0.0]
    assert known.decoders["image"].shape == (2,)
    assert known.transformation is not None and known.transformation.shown["mean"].words == "double"


def test_rows_are_worked_on_in_pieces_and_errors_have_their_numbers() -> None:
    def refuse(content: bytes) -> Any:
        return numpy.zeros(1 if content == b"a" else 2)

    preparation = Preparation(("b",), decoders={"b": Decoder("b", refuse, shape=(1,), dtype="float32")})
    pieces = preparation.batches([batch(b=[b"a"] * 5), batch(b=[]), batch(b=[b"a"] * 3)], ["float32"], 2)
    assert [piece.num_rows for piece in pieces] == [2, 2, 1, 2, 1]
    with pytest.raises(DataError, match=r"in row 6 of this rank's rows"):
        list(preparation.batches([batch(b=[b"a"] * 5), batch(b=[b"a", b"x"])], ["float32"], 2))


def test_types_and_sizes_of_fields() -> None:
    x = Field(("a", "b"), ("c1", "c2"), (1, 3), "float64", (4,))
    y = Field(("y",), ("c0",), (1,), "int64")
    assert dtypes_of([x, y]) == ["int64", "float64", "float64"]
    assert batch_rows_of([y]) == 1 << 16
    wide = Field(("v",), ("c0",), (1 << 20,), "float32", (1 << 20,))
    assert (batch_rows_of([wide]), batch_rows_of([wide] * 9)) == (4, 1), "16 MiB, but one row at least"


def doubled(frame: Any) -> Any:
    """Two rows of each, ten times as large."""
    import pandas

    return pandas.concat([frame, frame]).assign(x=lambda rows: rows.x * 10)


def divided(preparation: Preparation, rows: pyarrow.RecordBatch, most_rows: int) -> tuple[list[Any], list[Any]]:
    """The values of c0 in the rows to train on, and in those for validation."""
    values: tuple[list[Any], list[Any]] = ([], [])
    for part in preparation.batches([rows], ["float32"], most_rows):
        for value, mark in zip(part.column("c0").to_pylist(), part.column("marker").to_pylist(), strict=True):
            values[mark].append(value)
    return values


def test_rows_for_validation_can_stay_as_they_are() -> None:
    rows = batch(x=[1.0, 2.0, 3.0, 4.0], held=[0, 1, 0, 1])
    preparation = Preparation(("x",), "held", transformation=Transformation(doubled), transforms_marked=False)
    assert divided(preparation, rows, 4) == ([10.0, 30.0, 10.0, 30.0], [2.0, 4.0])
    assert divided(preparation, rows, 1) == ([10.0, 10.0, 30.0, 30.0], [2.0, 4.0])
    assert divided(replace(preparation, transforms_marked=True), rows, 4)[1] == [20.0, 40.0] * 2
    assert preparation.untransformed.batch(rows, ["float32"]).to_pydict() == {"c0": [1.0, 2.0, 3.0, 4.0]}
    with pytest.raises(DataError, match="the column 'held' of validation marks holds null"):
        divided(preparation, batch(x=[1.0], held=[None]), 4)


def test_a_share_of_rows_is_drawn_by_their_values() -> None:
    """Before the transformation, so that no copy of a row for validation is trained on."""
    numbers = [float(number) for number in range(4000)]
    rows = batch(x=numbers, v=[[number] for number in numbers], text=[str(number) for number in numbers])
    preparation = Preparation(
        ("x",),
        transformation=Transformation(doubled),
        transformation_columns=("x", "v", "text"),
        transforms_marked=False,
        held_share=0.25,
    )
    train, held = divided(preparation, rows, 4000)
    assert 900 < len(held) < 1100 and len(train) == 2 * (4000 - len(held))
    assert sorted({value / 10 for value in train} | set(held)) == numbers
    backwards = rows.take(pyarrow.array(range(3999, -1, -1)))
    assert sorted(divided(preparation, backwards, 7)[1]) == held
