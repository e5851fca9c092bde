"""Calls of a transform's function: the number of batches of a call, and the rows of its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest

from spark_estimator.data.fields import Array
from spark_estimator.extensions.petastorm.calls import CallSize, TransformedRows, calls_of
from spark_estimator.extensions.petastorm.pages import Page
from spark_estimator.extensions.petastorm.row_views import OrderedViews, views_of

SPOOL = {"x": numpy.arange(100), "y": numpy.arange(100) * 2.0}


def gathered(numbers: Array, names: Sequence[str]) -> Page:
    return {name: SPOOL[name][numbers] for name in names}


def test_fast_calls_get_more_rows_up_to_the_limit_and_slow_ones_fewer() -> None:
    size = CallSize(5)
    sizes = []
    for seconds in (0.0, 0.0, 0.0, 0.0, 0.05, 0.05, 1.0, 1.0, 1.0, 1.0, 0.0):
        sizes.append(size.batches)
        size.took(seconds)
    assert sizes == [1, 2, 4, 5, 5, 5, 5, 2, 1, 1, 1] and size.batches == 2


def test_a_limit_of_one_batch() -> None:
    size = CallSize(1)
    for seconds in (0.0, 10.0, 0.0):
        size.took(seconds)
        assert size.batches == 1


@pytest.mark.parametrize(("size", "parts"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (99, [5])])
def test_unchanged_columns_come_from_the_spool_a_part_at_a_time(size: int, parts: list[int]) -> None:
    numbers = numpy.array([7, 3, 99, 3, 0])
    rows = TransformedRows({"z": numpy.arange(5)}, ["y"], numbers)
    pages = list(rows.pages(size, ["y", "z"], gathered))
    assert [len(page["z"]) for page in pages] == parts
    assert [list(page) for page in pages] == [["y", "z"]] * len(parts)
    assert numpy.concatenate([page["y"] for page in pages]).tolist() == [14, 6, 198, 6, 0]
    assert numpy.concatenate([page["z"] for page in pages]).tolist() == [0, 1, 2, 3, 4]


def test_a_page_with_all_columns_is_not_cut() -> None:
    page = {"z": numpy.arange(5), "x": numpy.ones((5, 2))}
    (result,) = TransformedRows(page, [], numpy.arange(5)).pages(2, ["x", "z"], gathered)
    assert list(result) == ["x", "z"] and result["x"] is page["x"]


@pytest.mark.parametrize("unchanged", [[], ["x"]])
def test_no_rows_make_no_page(unchanged: list[str]) -> None:
    rows = TransformedRows({"z": numpy.zeros(0)}, unchanged, numpy.zeros(0, int))
    assert list(rows.pages(3, ["z", *unchanged], gathered)) == []


def test_calls_end_with_the_epoch_and_parts_with_batches() -> None:
    orders = [numpy.array([3, 1, 0, 2, 4]), numpy.array([0, 1, 2, 3, 4]), numpy.array([4, 3, 2, 1, 0])]
    views = {"v": OrderedViews(views_of(numpy.arange(10).reshape(5, 2)))}
    call_size = CallSize(1)
    calls = []
    for call in calls_of(iter(orders), 3, call_size, views):
        assert [row[0] for row in call.views["v"]] == (2 * call.numbers).tolist()
        calls.append((call.numbers.tolist(), call.first))
    assert calls == [([3, 1, 0], 0), ([2, 4], 0), ([0, 1, 2], 1), ([3, 4], 1), ([4, 3, 2], 2), ([1, 0], 2)]
    lengths = [
        [len(page["y"]) for page in TransformedRows({}, ["y"], numpy.array(numbers), first).pages(3, ["y"], gathered)]
        for numbers, first in calls
    ]
    assert lengths == [[3], [2], [1, 2], [1, 1], [2, 1], [2]]
