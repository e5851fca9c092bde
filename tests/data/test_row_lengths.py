"""Values per row: from shapes, the first rows, and the longest array of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from spark_estimator.data.columns import Readable
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.errors import DataError

X = Readable("x", False, "float32", None, "float")
V = Readable("v", True, "float32", None, "array<float>")
IDS = Readable("ids", True, "int64", None, "array<bigint>")
VECTOR = Readable("vector", True, "float32", None, "vector")


def widths(
    ragged: Ragged,
    shown: Sequence[int | None],
    columns: Sequence[Readable],
    features: int,
    lengths: Mapping[int, int] | None = None,
) -> tuple[tuple[int, ...], list[int]]:
    """The widths, and the positions of the columns that were measured over all rows, whose lengths are the argument."""
    measured: list[int] = []

    def longest(positions: Sequence[int]) -> list[int]:
        measured.extend(positions)
        return [(lengths or {})[position] for position in positions]

    return ragged.find_widths(shown, columns, ragged.find_paddings(columns), features, longest), measured


def test_fill_values() -> None:
    columns = [X, V, IDS, VECTOR]
    assert Ragged(-1).find_paddings(columns) == (None, -1, -1, None), "scalars and vectors have none"
    assert Ragged({"ids": 0}).find_paddings(columns) == (None, None, 0, None)
    assert Ragged().find_paddings(columns) == (None,) * 4


@pytest.mark.parametrize(
    ("padding", "words"),
    [
        ({"w": 0}, "padding refers to 'w', which isn't a feature or a label: x, v, ids, vector"),
        ({"x": 0}, r"padding refers to column 'x' \(float\), which isn't an array column"),
        ({"vector": 0}, r"padding refers to column 'vector' \(vector\), which isn't an array column"),
        (0.5, r"padding=0\.5 isn't valid for integer column 'ids' \(array<bigint>\)\. Use a whole number"),
    ],
)
def test_fill_values_that_are_refused(padding: float | Mapping[str, float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Ragged(padding).find_paddings([X, V, IDS, VECTOR])


def test_only_columns_with_a_fill_value_are_measured() -> None:
    """The first rows have arrays of one length; later ones may be longer."""
    assert widths(Ragged({"ids": 0}), [1, 2, 3], [X, V, IDS], 3, {2: 7}) == ((1, 2, 7), [2])
    assert widths(Ragged(), [1, 2, 3], [X, V, IDS], 3) == ((1, 2, 3), [])


def test_shapes_replace_the_measurement() -> None:
    assert widths(Ragged(0, [[-1, 1], [-1, 2, 2]]), [1, None, 5], [X, V, IDS], 2, {2: 6}) == ((1, 4, 6), [2])
    # One input of all columns side by side: the array has the rest.
    assert widths(Ragged(0, [[-1, 10]], [[-1, 3]]), [1, None, None], [X, V, IDS], 2) == ((1, 9, 3), [])
    # Nothing is left for the array, so that the shape is of no use here.
    assert widths(Ragged(0, [[-1, 1]]), [1, None], [X, V], 2, {1: 4}) == ((1, 4), [1])


@pytest.mark.parametrize(
    ("padding", "shown", "columns", "words"),
    [
        (None, [None], [V], "'v' has arrays of different lengths, or nulls, in its first rows. Set padding=0"),
        (None, [None], [VECTOR], "'vector' has vectors of different lengths, .*A tensor needs vectors of one length"),
        (0, [None], [V], "all arrays of column 'v' are empty or null"),
    ],
)
def test_lengths_that_are_refused(
    padding: float | None, shown: Sequence[int | None], columns: list[Readable], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        widths(Ragged(padding), shown, columns, 1, {0: 0})
