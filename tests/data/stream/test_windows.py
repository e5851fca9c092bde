"""Windows that a thread fills ahead from ranges, each read in sequence."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy
import pytest

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.stream.order import Window
from spark_estimator.data.stream.windows import RangeCursor, WindowReader
from spark_estimator.errors import DataError

FIELDS = (Field(("x",), ("c0",), (1,), "int64"), Field(("v",), ("c1",), (2,), "float32", (2,)))


def batch(start: int, stop: int) -> tuple[Array, Array]:
    x = numpy.arange(start, stop)
    return x[:, None], numpy.stack([x, -x], 1).astype(numpy.float32)


class Ranges:
    """Ranges of 100 rows, in batches of 3; remembers what was opened and closed."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.opened: list[tuple[int, Range]] = []
        self.closed: list[int] = []
        self.threads: set[str] = set()
        self._fail_at = fail_at

    def rows_from(self, number: int, part: Range) -> Iterator[tuple[Array, Array]]:
        self.opened.append((number, part))
        try:
            for start in range(part.start, 100, 3):
                self.threads.add(threading.current_thread().name)
                if self._fail_at is not None and start >= self._fail_at:
                    raise DataError("row 12 cannot be used")
                yield batch(100 * number + start, 100 * number + min(start + 3, 100))
        finally:
            self.closed.append(number)


def window(number: int, *parts: tuple[int, int, int]) -> Window:
    return Window(number, 0, tuple((piece, Range(piece, start, rows)) for piece, start, rows in parts))


def reader(ranges: Ranges, *windows: Window) -> WindowReader:
    return WindowReader(iter(windows), ranges.rows_from, FIELDS, 10, None, 0)


def rows_of(filled: Iterator[object]) -> list[list[int]]:
    result = []
    for each in filled:
        x, v = (matrix[: each.window.rows] for matrix in each.matrices)  # type: ignore[attr-defined]
        assert numpy.array_equal(v, numpy.concatenate([x, -x], 1))
        result.append(x.ravel().tolist())
    return result


def test_a_cursor_copies_across_batches_and_skips_empty_ones() -> None:
    closed = []

    def batches() -> Iterator[tuple[Array, Array]]:
        try:
            yield from (batch(0, 2), batch(2, 2), batch(2, 7))
        finally:
            closed.append(True)

    cursor = RangeCursor(batches())
    target = [numpy.full((6, 1), -1), numpy.zeros((6, 2), numpy.float32)]
    cursor.take(target, numpy.arange(0))
    cursor.take(target, numpy.array([5, 1, 4]))
    assert target[0].ravel().tolist() == [-1, 1, -1, -1, 2, 0]
    cursor.take(target, numpy.array([2, 3]))
    assert target[0].ravel().tolist() == [-1, 1, 3, 4, 2, 0]
    assert target[1][3].tolist() == [4.0, -4.0]
    cursor.close()
    assert closed == [True]
    RangeCursor(iter([])).close()


def test_a_cursor_copies_rows_without_values() -> None:
    """Of arrays that are all empty."""
    numbers = numpy.arange(3)[:, None]
    target = [numpy.zeros((3, 1), numpy.int64), numpy.zeros((3, 0), numpy.float32)]
    RangeCursor(iter([(numbers, numpy.zeros((3, 0), numpy.float32))])).take(target, numpy.array([2, 0, 1]))
    assert target[0].ravel().tolist() == [1, 2, 0]


def test_rows_are_in_the_order_in_which_they_are_read() -> None:
    windows = [window(number, (0, 5 * number, 5), (1, 5 * number, 5)) for number in range(3)]
    filled = WindowReader(iter(windows), Ranges().rows_from, FIELDS, 10, (7, 2), 1).read_windows()
    for each, rows in zip(windows, rows_of(filled), strict=True):
        stored = [*range(5 * each.number, 5 * each.number + 5), *range(100 + 5 * each.number, 105 + 5 * each.number)]
        assert rows == [stored[number] for number in each.draw_order((7, 2), 1)]
        assert rows != stored


def test_windows_come_in_order_and_continue_their_ranges() -> None:
    ranges = Ranges()
    windows = (window(0, (0, 0, 4), (1, 5, 4)), window(1, (0, 4, 4), (1, 9, 2)), window(2, (2, 0, 10)))
    rows = rows_of(reader(ranges, *windows).read_windows())
    assert rows == [
        [0, 1, 2, 3, 105, 106, 107, 108],
        [4, 5, 6, 7, 109, 110],
        list(range(200, 210)),
    ]
    assert ranges.opened == [(0, Range(0, 0, 4)), (1, Range(1, 5, 4)), (2, Range(2, 0, 10))], "each opened once"
    assert sorted(ranges.closed) == [0, 1, 2]
    assert threading.current_thread().name not in ranges.threads


def test_no_windows_give_no_rows() -> None:
    assert rows_of(reader(Ranges()).read_windows()) == []


def test_the_next_window_does_not_change_the_present_one() -> None:
    windows = [window(number, (0, 5 * number, 5)) for number in range(4)]
    filled = reader(Ranges(), *windows).read_windows()
    first = next(filled)
    before = first.matrices[0][:5].copy()
    second = next(filled)
    assert second.matrices[0] is not first.matrices[0]
    assert second.matrices[0][:5].ravel().tolist() == [5, 6, 7, 8, 9]
    assert before.ravel().tolist() == [0, 1, 2, 3, 4]
    filled.close()


def test_a_consumer_that_stops_closes_all_files() -> None:
    ranges = Ranges()
    filled = reader(ranges, *[window(number, (0, 4 * number, 4), (1, 0, 4)) for number in range(5)]).read_windows()
    next(filled)
    filled.close()
    assert sorted(ranges.closed) == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark_estimator windows")]


def test_an_error_of_a_range_reaches_the_consumer_after_the_windows_before_it() -> None:
    ranges = Ranges(fail_at=12)
    filled = reader(ranges, window(0, (0, 0, 9)), window(1, (0, 9, 9))).read_windows()
    assert next(filled).window.number == 0
    with pytest.raises(DataError, match="row 12 cannot be used"):
        next(filled)
    assert ranges.closed == [0]
