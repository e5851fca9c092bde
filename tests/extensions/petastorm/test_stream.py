"""Pages cut into batches, mixed, and read ahead in threads."""

from __future__ import annotations

import threading

import numpy
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import Piece
from spark_estimator.extensions.petastorm.pages import Page
from spark_estimator.extensions.petastorm.stream import Order, choose_threads, read_pages, rebatch


def some(*sizes: int) -> list[Page]:
    """Pages of these numbers of rows: 0, 1, 2, ..."""
    ends = numpy.cumsum(sizes)
    return [{"n": numpy.arange(end - size, end)} for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("sizes", [(1,), (5, 5, 5), (2, 1, 1, 9, 1), (4, 4), (30,), (3,) * 10])
@pytest.mark.parametrize("capacity", [0, 6])
def test_batches_have_all_rows_once(sizes: tuple[int, ...], capacity: int) -> None:
    batches = [batch["n"].tolist() for batch in rebatch(iter(some(*sizes)), 4, capacity)]
    rows = [n for batch in batches for n in batch]
    assert all(len(batch) == 4 for batch in batches[:-1]) and 0 < len(batches[-1]) <= 4
    assert sorted(rows) == list(range(sum(sizes))) and (capacity or rows == sorted(rows))


def test_a_queue_mixes_what_is_near() -> None:
    rows = [n for batch in rebatch(iter(some(*[5] * 200)), 10, 100, seed=1) for n in batch["n"].tolist()]
    distances = numpy.abs(numpy.array(rows) - numpy.arange(1000))
    assert sorted(rows) == list(range(1000)) and 10 < numpy.median(distances) < 200


def test_rows_of_different_shapes_have_an_error_that_says_so() -> None:
    source = iter([{"x": numpy.ones((3, 2))}, {"x": numpy.ones((3, 4))}])
    with pytest.raises(DataError, match=r"column 'x' has rows of different shapes: \[2\], \[4\]"):
        list(rebatch(source, 4))


@pytest.mark.parametrize("threads", [0, 2])
def test_orders_do_not_depend_on_threads(threads: int) -> None:
    pieces = [Piece(0, group, 0, 3) for group in range(4)]

    def page(piece: Piece) -> Page:
        return {"n": numpy.arange(3) + 3 * piece.group}

    def epochs(order: Order, first: int = 0) -> list[list[int]]:
        return [result["n"].tolist() for result in read_pages(pieces, page, order, threads, first)]

    plain = Order(2, 0, groups=False, rows=False)
    assert epochs(plain) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]] * 2
    mixed = epochs(Order(2, 5, groups=True, rows=True))
    assert mixed == epochs(Order(2, 5, groups=True, rows=True)) and mixed[:4] != mixed[4:]
    assert sorted(n for page in mixed for n in page) == sorted(list(range(12)) * 2)
    assert epochs(Order(1, 5, groups=True, rows=True), first=1) == mixed[4:]


def test_an_error_of_a_thread_and_an_early_end() -> None:
    before = threading.active_count()

    def page(piece: Piece) -> Page:
        if piece.group == 2:
            raise DataError("broken")
        return {"n": numpy.ones(1)}

    endless = Order(None, 0, groups=False, rows=False)
    source = read_pages([Piece(0, group, 0, 1) for group in range(4)], page, endless, 2)
    next(source)
    source.close()  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="broken"):
        list(read_pages([Piece(0, group, 0, 1) for group in range(4)], page, endless, 2))
    assert threading.active_count() == before


def test_threads() -> None:
    assert choose_threads("dummy", 10) == 0 and 1 <= choose_threads("process", 1) == 1 <= choose_threads("thread", None)
