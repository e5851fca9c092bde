"""The rows that a reader's predicate and filters select, counted before they are shared out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, find_dataset
from spark_estimator.extensions.petastorm.predicates import in_lambda, in_set
from spark_estimator.extensions.petastorm.selection import select_rows


@pytest.fixture
def files(tmp_path: Path) -> DatasetFiles:
    """x = 0 ... 7 in row groups of 3, half of them of year 1 and half of year 2; gap is null where x is odd."""
    for year, numbers in ((1, range(4)), (2, range(4, 8))):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        table = pyarrow.table(
            {
                "x": pyarrow.array(numbers, pyarrow.int64()),
                "gap": pyarrow.array([None if x % 2 else x for x in numbers], pyarrow.int64()),
                "name": [f"n{x}" for x in numbers],
            }
        )
        pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=3)
    return find_dataset(str(tmp_path))


def rows(files: DatasetFiles, shard: int = 0, shards: int = 1) -> list[int]:
    return [
        x for piece in files.find_pieces(shard, shards) for x in files.read(piece, ["x"], {}).column("x").to_pylist()
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, list(range(8))),
        ([], list(range(8))),
        ([("x", ">", 5)], [6, 7]),
        ([("x", ">", 2), ("x", "<", 4)], [3]),
        ([[("x", "=", 0)], [("x", "=", 7)]], [0, 7]),
        ([("x", "in", [1, 2, 99])], [1, 2]),
        ([("x", "not in", {1, 2, 3, 4})], [0, 5, 6, 7]),
        ([("x", ">", 100)], []),
        ([("gap", ">=", 0)], [0, 2, 4, 6]),
        ([("name", "==", "n3")], [3]),
        ([("year", "=", 2), ("x", "!=", 4)], [5, 6, 7]),
        ([("year", "=", "2")], [4, 5, 6, 7]),
        ([("year", "in", ("1", "-3"))], [0, 1, 2, 3]),
        ((("year", "=", 1), ("x", "<", 2)), [0, 1]),
    ],
)
def test_filters(files: DatasetFiles, filters: Any, expected: list[int]) -> None:
    result = select_rows(files, None, filters, by_row=False)
    assert rows(result) == expected and result.rows == len(expected)
    assert rows(files) == list(range(8)), "the files themselves stay"


@pytest.mark.parametrize("by_row", [False, True])
def test_a_predicate_narrows_what_the_filters_leave(files: DatasetFiles, by_row: bool) -> None:
    odd = in_lambda(["x"], lambda x: x % 2 == 1)
    assert rows(select_rows(files, odd, None, by_row)) == [1, 3, 5, 7]
    both = select_rows(files, odd, [("x", ">", 2)], by_row)
    assert rows(both) == [3, 5, 7]
    assert [rows(both, shard, 3) for shard in range(3)] == [[3], [5], [7]], "equal shares of the selected rows"
    again = select_rows(both, in_set([5, 6], "x"), None, by_row)
    assert rows(again) == [5], "numbers count in the row group, not in what was selected before"


@pytest.mark.parametrize("by_row", [False, True])
def test_partition_columns_read_no_file(files: DatasetFiles, by_row: bool) -> None:
    for file in files.files:
        Path(file.path).unlink()
    assert select_rows(files, in_set([2], "year"), [("year", ">", 0)], by_row).rows == 4
    assert select_rows(files, in_set([3], "year"), None, by_row).rows == 0


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("x > 3", "filters must be a list of"),
        ([("x", ">")], "filters must be a list of"),
        ([[]], "filters must be a list of"),
        ({"x": 3}, "filters must be a list of"),
        (7, "filters must be a list of"),
        ([("x", "like", 3)], "filters: .*like"),
    ],
)
def test_filters_of_another_form(files: DatasetFiles, filters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_rows(files, None, filters, by_row=False)


def test_columns_and_values_that_do_not_fit(files: DatasetFiles) -> None:
    with pytest.raises(DataError, match=r"name 'X', which is no column of 'year', 'x', .*Did you mean 'x'"):
        select_rows(files, None, [("X", "=", 1)], by_row=False)
    with pytest.raises(DataError, match="'labels'"):
        select_rows(files, in_set([1], "labels"), None, by_row=False)
    for value in ("--2", "\u00b2"):  # digits for Python's isdigit, and no number for int
        with pytest.raises(DataError, match=r"filters .*year"):
            select_rows(files, None, [("year", "=", value)], by_row=False)
    with pytest.raises(DataError, match=r"filters \[\('x', '=', 'text'\)\]"):
        select_rows(files, None, [("x", "=", "text")], by_row=False)


def test_predicates_of_another_form(files: DatasetFiles) -> None:
    with pytest.raises(
        ValueError, match=r"predicate must be an object of petastorm\.predicates\.PredicateBase; got <func"
    ):
        select_rows(files, lambda x: True, None, by_row=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names no column"):
        select_rows(files, in_lambda([], lambda: True), None, by_row=False)
