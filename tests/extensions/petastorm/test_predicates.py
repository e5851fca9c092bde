"""Predicates and filters: which rows they leave, in equal shares, in readers of batches and of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.petastorm import make_batch_reader, make_reader
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)

IN_ORDER = {"shuffle_row_groups": False, "reader_pool_type": "dummy"}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """n = 0 ... 19 in row groups of six, their texts, and arrays [n, n + 1]."""
    table = pyarrow.table(
        {"n": range(20), "text": [str(n) for n in range(20)], "tags": [[n, n + 1] for n in range(20)]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=6)
    return str(tmp_path)


class Small(PredicateBase):
    """A user's own, for single rows."""

    def get_fields(self) -> set[str]:
        return {"n", "text"}

    def do_include(self, values: Any) -> bool:
        return int(values["n"]) < 3 and values["text"] in ("0", "1", "2", "3")


class Large(Small):
    """Another, for many."""

    def do_include(self, values: Any) -> Any:
        assert isinstance(values, pandas.DataFrame)
        return values["n"] > 17


# What in_pseudorandom_split chooses was asked of petastorm 0.13.1.
@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (in_set([3, 17, 99], "n"), [3, 17]),
        (in_set(["3", "17"], "text"), [3, 17]),
        (in_lambda(["n"], lambda n: n < 3), [0, 1, 2]),
        (in_lambda(["n", "text"], lambda n, text, most: n < most and text != "1", 3), [0, 2]),
        (in_intersection([5, 19], "tags"), [4, 5, 18, 19]),
        (in_negate(in_lambda(["n"], lambda n: n > 1)), [0, 1]),
        (in_reduce([in_set([1, 2, 3], "n"), in_set(["2", "3", "4"], "text")], all), [2, 3]),
        (in_reduce([in_set([1], "n"), in_set(["4"], "text")], any), [1, 4]),
        (in_pseudorandom_split([0.5, 0.5], 0, "n"), [0, 1, 3, 5, 6, 10, 12, 13, 19]),
        (Small(), [0, 1, 2]),
    ],
)
def test_a_predicate_leaves_its_rows(rows: str, predicate: PredicateBase, expected: list[int]) -> None:
    with make_batch_reader(rows, predicate=predicate, **IN_ORDER) as reader:
        batches = [batch.n for batch in reader]
    assert [n for batch in batches for n in batch.tolist()] == expected
    assert {batch.dtype.name for batch in batches} == {"int64"}, "whole numbers stay whole"
    with make_reader(rows, ["n"], predicate=predicate, **IN_ORDER) as reader:
        assert [row.n for row in reader] == expected


def test_a_predicate_of_many_rows_and_one_that_fails(rows: str) -> None:
    with make_batch_reader(rows, ["n"], predicate=Large()) as reader:
        assert next(reader).n.tolist() == [18, 19]
    with pytest.raises(AssertionError):
        make_reader(rows, ["n"], predicate=Large())
    with pytest.raises(DataError, match=r"'m', which is no column of 'n', 'text', 'tags'"):
        make_batch_reader(rows, predicate=in_set([1], "m"))
    with pytest.raises(ValueError, match="in_intersection needs a column of arrays"):
        make_batch_reader(rows, predicate=in_intersection([1], "n"))
    with pytest.raises(ValueError, match="subset_index=2: there are 2 parts"):
        in_pseudorandom_split([0.5, 0.5], 2, "n")
    with pytest.raises(ValueError, match="is no predicate"):
        in_negate(len)  # type: ignore[arg-type]


@pytest.mark.parametrize("group_rows", [1, 2, 3, 4, 20])
@pytest.mark.parametrize(
    ("column", "function"),
    [
        ("text", lambda text: text[:1] == "1"),
        ("text", lambda text: text[-2:] == "13"),
        ("tags", lambda tags: tags.sum() > 30),
        ("tags", lambda tags: tags[0] > 12),
    ],
)
def test_a_function_of_single_values_is_known_at_each_length_of_row_groups(
    tmp_path: Path, group_rows: int, column: str, function: Callable[[Any], Any]
) -> None:
    tags = [numpy.array([n, n + 1, 7, n]) for n in range(20)]
    table = pyarrow.table({"n": range(20), "text": [str(n) for n in range(20)], "tags": tags})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=group_rows)
    values = {"text": table["text"].to_pylist(), "tags": tags}[column]
    with make_batch_reader(str(tmp_path), ["n"], predicate=in_lambda([column], function), **IN_ORDER) as reader:
        read = [n for batch in reader for n in batch.n.tolist()]
    assert read == [n for n in range(20) if function(values[n])]


def test_a_function_of_columns_answers_for_its_row_group(rows: str) -> None:
    """Its answer is taken by the labels of the rows, as in petastorm."""
    for function, expected in [
        (lambda n: n > n.mean(), [3, 4, 5, 9, 10, 11, 15, 16, 17, 19]),
        (lambda n: n.sort_values(ascending=False) < 2, [0, 1]),
        (lambda n: (n % 5 == 0).to_numpy(), [0, 5, 10, 15]),
    ]:
        with make_batch_reader(rows, ["n"], predicate=in_lambda(["n"], function), **IN_ORDER) as reader:
            assert [n for batch in reader for n in batch.n.tolist()] == expected


def test_shares_of_the_rows_that_are_left_are_equal(rows: str) -> None:
    """Although all are in the first two row groups."""
    shards = []
    for shard in range(3):
        predicate = in_lambda(["n"], lambda n: n < 8)
        with make_batch_reader(rows, ["n"], predicate=predicate, cur_shard=shard, shard_count=3, **IN_ORDER) as reader:
            shards.append([n for batch in reader for n in batch.n.tolist()])
    assert shards == [[0, 1, 2], [3, 4, 5], [6, 7]]
    with pytest.raises(DataError, match="1 rows cannot be shared out among 2 shards"):
        make_batch_reader(rows, predicate=in_set([1], "n"), cur_shard=0, shard_count=2)
    with pytest.warns(UserWarning, match="the predicate or the filters leave no row"):
        assert not list(make_batch_reader(rows, predicate=in_set([99], "n")))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("n", "<", 2)], [0, 1]),
        ([("n", ">=", 4), ("text", "in", ["4", "6", "2"])], [4, 6]),
        ([[("n", "=", 1)], [("n", ">", 18)]], [1, 19]),
    ],
)
def test_filters_leave_rows(rows: str, filters: list[Any], expected: list[int]) -> None:
    with make_batch_reader(rows, ["n"], filters=filters, **IN_ORDER) as reader:
        assert [n for batch in reader for n in batch.n.tolist()] == expected
    both = {"filters": [("n", "<", 12)], "predicate": in_lambda(["n"], lambda n: n > 9)}
    with make_batch_reader(rows, ["n"], **both, **IN_ORDER) as reader:
        assert [n for batch in reader for n in batch.n.tolist()] == [10, 11]


def test_filters_that_are_none(rows: str) -> None:
    for filters in ("n < 2", [("n", "<")], [("n", "~", 2)]):
        with pytest.raises(ValueError, match="filters"):
            make_batch_reader(rows, filters=filters)
    with pytest.raises(DataError, match="filters"):
        make_batch_reader(rows, filters=[("n", "<", "a")])
