"""Rows' arrays that are lent to one call after another: the same objects, unless something still refers to one."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy
import pandas
import pytest

from spark_estimator.extensions.petastorm import row_views
from spark_estimator.extensions.petastorm.row_views import GivenRows, OrderedViews, ViewPool, views_of


def matrix(first: int, rows: int = 50, width: int = 3) -> Any:
    return numpy.arange(first, first + rows * width, dtype=numpy.float32).reshape(rows, width)


def call(pool: ViewPool, rows: Any, function: Any) -> bool:
    """Whether `function` of a frame returned the original rows."""
    lent = pool.lend({"x": rows})
    try:
        return called(lent.columns["x"], rows, function)
    finally:
        lent.end()


def called(column: Any, rows: Any, function: Any) -> bool:
    frame = pandas.DataFrame({"n": numpy.arange(len(rows)), "x": column.column}, copy=False)
    assert numpy.array_equal(numpy.stack(list(frame["x"])), rows)
    return bool(column.are_in(function(frame)["x"].to_numpy()))


def address(pool: ViewPool) -> int:
    """Of a column's first object, as the pool would lend it."""
    return id(pool._free[0]["x"]._objects[0])


def test_the_same_objects_have_other_rows() -> None:
    pool = ViewPool()
    assert call(pool, matrix(0), lambda frame: frame)
    first = address(pool)
    assert call(pool, matrix(1000), lambda frame: frame)
    assert call(pool, matrix(2000, rows=7), lambda frame: frame), "fewer rows fit in, too"
    assert address(pool) == first and len(pool._free) == 1
    assert call(pool, matrix(0, rows=60), lambda frame: frame) and len(pool._free[0]["x"]._objects) == 60
    assert call(pool, matrix(0).astype(int), lambda frame: frame), "another type"


def test_functions_that_change_a_column() -> None:
    pool = ViewPool()

    def replaced_in_place(frame: Any) -> Any:
        values = frame["x"].to_numpy()
        values[3] = None
        values[3] = numpy.zeros(3)
        return frame

    rows = matrix(0)
    assert not call(pool, rows, lambda frame: frame[::-1])
    assert not call(pool, rows, lambda frame: frame[frame["n"] < 9])
    assert not call(pool, rows, lambda frame: frame.assign(x=frame["x"].map(lambda row: row + 1)))
    assert not call(pool, rows, replaced_in_place)
    assert call(pool, rows, lambda frame: frame), "the pool has put its own objects back"
    assert len(pool._free) == 1 and pool._kept == 0


@pytest.mark.parametrize(
    "kept_of",
    [
        lambda frame: frame,
        lambda frame: frame["x"],
        lambda frame: frame["x"].to_numpy()[:2],
        lambda frame: frame["x"].iloc[4],
        lambda frame: frame["x"].iloc[4][1:],
        lambda frame: memoryview(frame["x"].iloc[0]),
    ],
)
def test_what_a_function_keeps_stays_as_it_was(kept_of: Any) -> None:
    pool = ViewPool()
    kept: list[Any] = []

    def keeping(frame: Any) -> Any:
        kept.append(kept_of(frame))
        return frame

    def values() -> Any:
        (value,) = kept
        if isinstance(value, pandas.DataFrame):
            value = value["x"]
        many = not isinstance(value, memoryview) and value.dtype.kind == "O"
        return numpy.stack(list(value)) if many else numpy.asarray(value)

    assert call(pool, matrix(0), keeping)
    before = values().copy()
    assert pool._free == [] and pool._kept == 1
    assert call(pool, matrix(5000), lambda frame: frame)
    assert numpy.array_equal(values(), before)


def test_a_function_that_always_keeps_rows_gets_new_objects() -> None:
    pool, kept = ViewPool(), []
    for number in range(6):
        assert call(pool, matrix(number), lambda frame: (kept.append(frame["x"].iloc[0]), frame)[1])
    assert pool._free == [] and pool._kept == row_views._MOST_KEPT
    assert [row[0] for row in kept] == list(range(6))


def test_rows_cannot_be_written_to() -> None:
    def writing(frame: Any) -> Any:
        row = frame["x"].iloc[0]
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 5
        with pytest.raises(ValueError, match="WRITEABLE"):
            row.flags.writeable = True
        return frame

    assert call(ViewPool(), matrix(0), writing)


def test_wide_rows_no_rows_and_other_interpreters_get_new_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ViewPool()
    assert call(pool, matrix(0, rows=3, width=500), lambda frame: frame)
    lent = pool.lend({"x": matrix(0, rows=0)})
    assert len(lent.columns["x"].column) == 0
    lent.end()
    monkeypatch.setattr(row_views, "_counts_are_readable", lambda: False)
    assert call(pool, matrix(0), lambda frame: frame)
    assert pool._free == []


def test_a_pool_travels_empty() -> None:
    pool = ViewPool()
    assert call(pool, matrix(0), lambda frame: frame) and pool._free
    assert pickle.loads(pickle.dumps(pool))._free == []


def orders(count: int, rows: int = 20) -> list[Any]:
    chance = numpy.random.default_rng(3)
    return [chance.permutation(rows) for _ in range(count)]


def references(views: OrderedViews) -> list[int]:
    """To each object."""
    return [sys.getrefcount(view) for view in views.views]


def test_an_epoch_moves_the_same_objects() -> None:
    rows = matrix(0, rows=20)
    views = OrderedViews(views_of(rows))
    before = references(views)
    arrays = set()
    for order in orders(6):
        column = views.in_order(order)
        assert called(GivenRows(column[3:9], views.views), rows[order[3:9]], lambda frame: frame)
        assert called(GivenRows(column, views.views), rows[order], lambda frame: frame)
        arrays.add(id(column))
    assert [count - len(arrays) for count in references(views)] == before and len(arrays) == 2
    del column
    views._columns.clear()
    assert references(views) == before


def test_arrays_that_are_in_use_are_left_alone() -> None:
    rows = matrix(0, rows=20)
    views = OrderedViews(views_of(rows))
    kept = [(order, views.in_order(order)[2:]) for order in orders(4)]
    for order, column in kept:
        assert numpy.array_equal(numpy.stack(list(column)), rows[order[2:]])
    before = references(views)
    del kept, column
    assert all(later < sooner for sooner, later in zip(before, references(views), strict=True))


def test_objects_that_a_function_replaces_are_not_moved() -> None:
    rows = matrix(0, rows=20)
    views = OrderedViews(views_of(rows))
    before = references(views)
    for number, order in enumerate(orders(5)):
        column = views.in_order(order)
        assert numpy.array_equal(numpy.stack(list(column)), rows[order]), number
        column[number] = None
        column[number + 1] = column[number + 2]
    del column
    views._columns.clear()
    assert references(views) == before


def test_orders_of_other_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_views, "_counts_are_readable", lambda: False)
    rows = matrix(0, rows=20)
    views = OrderedViews(views_of(rows))
    for order in orders(2):
        assert numpy.array_equal(numpy.stack(list(views.in_order(order))), rows[order])
    assert views._columns == []
