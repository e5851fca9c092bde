"""`transformation_fn`: its calls, the types that its first result fixes, and what is refused."""

from __future__ import annotations

import decimal
from dataclasses import replace
from typing import Any

import numpy
import pandas
import pyarrow
import pytest

from spark_estimator.data.transformation import Shown, Takes, Transformation
from spark_estimator.errors import DataError


def test_what_a_function_returns_is_of_one_type() -> None:
    """Arrow would read numbers out of texts and out of times; for a duplicate name pandas returns a frame."""

    def refused(first: object, later: object) -> str:
        known, _ = Transformation(lambda rows: pandas.DataFrame({"x": first})).apply({}, ["x"])
        with pytest.raises(DataError) as error:
            replace(known, function=lambda rows: later).apply({}, ["x"], 200)
        return str(error.value)

    text = refused([0.5], pandas.DataFrame({"x": [None, "1.5"]}))
    assert "returned '1.5' in column 'x', in row 1 of its result for the rows from row 200 of this rank's" in text
    assert "the first rows held double. Return one type" in text
    assert "the first rows held bigint" in refused([1], pandas.DataFrame({"x": pandas.to_datetime(["2020-01-01"])}))
    assert "held string" in refused(["a"], pandas.DataFrame({"x": [1]}))
    assert "returned 2 columns named 'x': return one" in refused([1], pandas.DataFrame([[1, 2]], columns=["x", "x"]))
    assert "it has 'X'. Did you mean 'X'?" in refused([1], pandas.DataFrame({"X": [1]}))
    known, _ = Transformation(lambda rows: pandas.DataFrame({"x": [1.5]})).apply({}, ["x"])
    for same in ([1], [True], [None], [decimal.Decimal("0.5")], pandas.Categorical([1, 2])):
        made = replace(known, function=lambda rows, same=same: pandas.DataFrame({"x": same}))
        assert made.apply({}, ["x"])[1]["x"].type == pyarrow.float64()


def test_the_function_receives_numpy_arrays_and_floats() -> None:
    """Lists as numpy arrays, decimals as floats, decoded arrays as they are."""
    seen: list[pandas.DataFrame] = []

    def double(frame: pandas.DataFrame) -> pandas.DataFrame:
        seen.append(frame)
        return pandas.DataFrame({"sum": [values.sum() for values in frame["v"]], "price": frame["price"] * 2})

    columns = {
        "v": pyarrow.array([[1.0, 2.0], [3.0]]),
        "price": pyarrow.array([decimal.Decimal("0.25"), None]),
        "image": [numpy.zeros((2, 2), numpy.uint8), None],
    }
    known, results = Transformation(double).apply(columns, ["sum", "price"])
    assert isinstance(seen[0]["v"][0], numpy.ndarray) and seen[0]["image"][0].shape == (2, 2)
    assert results["sum"].to_pylist() == [3.0, 3.0] and results["price"].to_pylist() == [0.5, None]
    assert {name: shown.words for name, shown in known.shown.items()} == {"sum": "double", "price": "double"}


def test_whole_numbers_that_pandas_would_round_beside_null_are_refused() -> None:
    """Otherwise a row's number would depend on the other rows that are passed with it."""
    same = Transformation(lambda frame: frame, takes=Takes.FRAME)
    large, exact = (1 << 60) + 1, 1 << 53
    assert same.apply({"x": pyarrow.array([large, 1])}, ["x"])[1]["x"].to_pylist() == [large, 1]
    assert same.apply({"x": pyarrow.array([exact, None])}, ["x"])[1]["x"].to_pylist() == [exact, None]
    for column in (pyarrow.array([large, None]), pyarrow.array([[large], [None, 1]])):
        with pytest.raises(DataError, match="column 'x' holds null, and whole numbers beyond 2"):
            same.apply({"x": column}, ["x"])


def test_arrays_keep_the_shape_of_the_first_rows() -> None:
    images = pandas.DataFrame({"x": [numpy.zeros((2, 3), numpy.uint8), numpy.ones((2, 3), numpy.uint8)]})
    known, results = Transformation(lambda rows: images).apply({}, ["x"])
    assert known.shown["x"] == Shown(pyarrow.uint8(), True, (2, 3))
    assert known.shown["x"].is_bytes and known.shown["x"].words == "array<smallint>"
    assert results["x"].to_pylist() == [[0] * 6, [1] * 6]
    for later, words in (
        ([numpy.zeros((3, 2), numpy.uint8)], r"array of shape \[3, 2\], and \[2, 3\] in the first rows"),
        ([numpy.zeros((2, 3))], "array of float64, and of uint8 in the first rows"),
        ([7], "returned 7 where other rows have arrays"),
    ):
        changed = replace(known, function=lambda rows, later=later: pandas.DataFrame({"x": later}))
        with pytest.raises(DataError, match=words):
            changed.apply({}, ["x"])


def test_arrays_of_several_lengths_and_null() -> None:
    ragged = pandas.DataFrame({"x": [[1, 2], None, [], [3]]})
    known, results = Transformation(lambda rows: ragged).apply({}, ["x"])
    assert results["x"].to_pylist() == [[1, 2], None, [], [3]]
    assert known.shown["x"].words == "array<bigint>" and not known.shown["x"].is_bytes
    with pytest.raises(DataError, match="returned empty arrays alone for the first rows"):
        Transformation(lambda rows: pandas.DataFrame({"x": [[], []]})).apply({}, ["x"])


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"removed": ("x",)}, "transformation_removed_fields lists 'x', but transformation_fn returns it"),
        ({"edited": (("z", "int64", (), False),)}, "transformation_edit_fields names 'z', which .* does not return"),
        ({"edited": (("x", "int8", (), False),)}, "declares 'x' as int8, but transformation_fn returned float64"),
        ({"edited": (("x", "float64", (2,), False),)}, r"declares 'x' with shape \[2\], but .* returned \[\]"),
        ({"edited": (("x", "float64", (), True),), "removed": ("y",)}, None),
    ],
)
def test_the_first_result_is_compared_with_the_declared_columns(declared: dict[str, object], words: str | None) -> None:
    transformation = Transformation(lambda rows: pandas.DataFrame({"x": [0.5]}), **declared)  # type: ignore[arg-type]
    if words is None:
        assert transformation.apply({}, ["x"])[1]["x"].to_pylist() == [0.5]
        return
    with pytest.raises(DataError, match=words):
        transformation.apply({}, ["x"])


def test_first_rows_have_to_show_a_type() -> None:
    with pytest.raises(DataError, match="returned no row for the first 1 rows"):
        Transformation(lambda rows: rows[:0]).apply({"x": pyarrow.array([1])}, ["x"])
    with pytest.raises(DataError, match="column 'x' of what transformation_fn returned holds null alone"):
        Transformation(lambda rows: pandas.DataFrame({"x": [None, None]})).apply({}, ["x"])
    with pytest.raises(DataError, match=r"(?s)transformation_fn failed on 1 rows, from row 30 .*ZeroDivisionError"):
        Transformation(lambda rows: 1 // 0).apply({"x": pyarrow.array([1])}, ["x"], 30)


def test_a_function_of_a_row_is_known_by_its_first_call() -> None:
    columns = {"text": pyarrow.array(["a", "bcd"]), "gone": pyarrow.array([1, 2]), "held": pyarrow.array([0, 1])}

    def by_row(row: dict[str, object]) -> dict[str, object]:
        return {"length": len(str(row["text"]).upper()), "pair": numpy.ones(2, numpy.float32), "gone": row["gone"]}

    made = Transformation(by_row, (("length", "int64", (), False), ("pair", "float32", (), True)), ("gone",))
    known, results = made.apply(columns, ["length", "held"], marker="held")
    assert (
        known.takes is Takes.ROW and results["length"].to_pylist() == [1, 3] and results["held"].to_pylist() == [0, 1]
    )
    _, named = made.apply(columns, ["text"], by_name=True)
    assert list(named) == ["length", "pair"] and named["pair"].to_pylist() == [[1.0, 1.0], [1.0, 1.0]]
    known, _ = Transformation(lambda rows: rows.assign(length=1)).apply(columns, ["length"])
    assert known.takes is Takes.FRAME


def backwards(row: Any) -> Any:
    row["v"] = row["v"][::-1]
    return row


def rolled(row: dict[str, Any]) -> dict[str, Any]:
    row["v"] = numpy.roll(row["v"], 1)
    return row


@pytest.mark.parametrize("function", [backwards, rolled])
def test_a_function_that_changes_its_argument_gets_rows(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A frame would have its rows exchanged, not their numbers."""
    columns = {"v": pyarrow.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])}
    known, results = Transformation(function).apply(columns, ["v"])
    assert known.takes is Takes.ROW
    assert results["v"].to_pylist() == [[2.0, 0.0], [3.0, 1.0], [4.0, 2.0]]
    assert ("annotate its parameter" in caplog.text) == (function is backwards)


def test_a_trial_leaves_decoded_arrays_as_they_are() -> None:
    def halved(row: Any) -> Any:
        row["v"] /= 2
        return row

    _, results = Transformation(halved).apply({"v": [numpy.array([2.0, 4.0]), numpy.array([6.0, 8.0])]}, ["v"])
    assert results["v"].to_pylist() == [[1.0, 2.0], [3.0, 4.0]]


def test_annotated_functions_get_what_they_name() -> None:
    columns = {"x": pyarrow.array([1.0, 3.0])}

    def centred(frame: pandas.DataFrame) -> pandas.DataFrame:
        frame["x"] = frame["x"] - frame["x"].mean()
        return frame

    known, results = Transformation(centred).apply(columns, ["x"])
    assert known.takes is Takes.FRAME and results["x"].to_pylist() == [-1.0, 1.0]


def test_what_returns_neither_is_refused() -> None:
    columns = {"x": pyarrow.array([1, 2])}
    with pytest.raises(DataError, match=r"failed on 2 rows, from row 0 of this rank's rows on: ZeroDivisionError"):
        Transformation(lambda rows: 1 / 0).apply(columns, ["x"])
    with pytest.raises(DataError, match=r"returns a pandas\.DataFrame, or a dict for each row; it returned list"):
        Transformation(lambda rows: [1]).apply(columns, ["x"])
    with pytest.raises(DataError, match="returned no column 'z'"):
        Transformation(lambda row: {"y": row["x"].item()}).apply(columns, ["z"])


def test_the_error_of_the_call_with_a_row_is_shown_too() -> None:
    def wrong_name(row: object) -> object:
        return {"x": float(row["b"])}  # type: ignore[index]

    with pytest.raises(
        DataError,
        match=r"(?s)failed on 2 rows.*called with a dict of one row \(which has 'x'\) and raised KeyError: 'b'",
    ):
        Transformation(wrong_name).apply({"x": pyarrow.array([1, 2])}, ["x"])
