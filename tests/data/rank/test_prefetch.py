"""Batches that are made ahead are in order, whichever thread has made them; orders are drawn fairly."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import numpy
import pytest

from spark_estimator.data.rank.prefetch import Ahead, shuffle_numbers

LARGE = 1 << 20  # bytes: a group has one such item


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 100])
@pytest.mark.parametrize("item_bytes", [0, 100_000, LARGE, 1 << 30])
def test_items_come_in_their_order(count: int, item_bytes: int) -> None:
    assert list(Ahead().make_items(lambda number: number * 2, range(count), item_bytes)) == list(range(0, 2 * count, 2))


def test_two_threads_make_them_where_one_does_not_keep_up() -> None:
    caller = threading.get_ident()
    taken_over = threading.Event()

    def make(number: int) -> int:
        if threading.get_ident() == caller:
            taken_over.set()
        else:
            assert taken_over.wait(30), "the caller made none of the next ones while this thread was at work"
        return number

    assert list(Ahead().make_items(make, range(10), LARGE)) == list(range(10))


def test_the_next_ones_are_ready_before_they_are_asked_for() -> None:
    made: list[threading.Event] = [threading.Event() for _ in range(20)]

    def make(number: int) -> int:
        made[number].set()
        return number

    for number in Ahead().make_items(make, range(20), LARGE):
        assert all(each.wait(30) for each in made[number : number + 3])
        assert not any(each.is_set() for each in made[number + 4 :]), "more are made than were to be"


def test_an_error_comes_in_its_turn_whoever_has_made_it() -> None:
    def fails_from(limit: int) -> Callable[[int], int]:
        def make(number: int) -> int:
            if number >= limit:
                raise ValueError(f"no {number}")
            return number

        return make

    for limit in range(6):
        seen = []
        with pytest.raises(ValueError, match=f"no {limit}"):
            for number in Ahead().make_items(fails_from(limit), range(8), LARGE):
                seen.append(number)
        assert seen == list(range(limit))


def test_one_thread_serves_all_epochs_and_ends_with_its_owner() -> None:
    before = set(threading.enumerate())
    owner = Ahead()
    for _ in range(3):
        for number in owner.make_items(int, itertools.count(), LARGE):  # which is abandoned
            if number == 5:
                break
        assert list(owner.make_items(int, range(9), LARGE)) == list(range(9))
        owner.draw_order(numpy.arange(100_000), [1], 0)
    (thread,) = set(threading.enumerate()) - before
    del owner
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 100_000])
def test_an_order_has_every_number_once_and_is_the_names(count: int) -> None:
    numbers = numpy.arange(count) * 3 + 1
    order = shuffle_numbers(numbers, [7, 1])
    assert order.dtype == numpy.int64
    assert sorted(order.tolist()) == numbers.tolist()
    assert order.tolist() == shuffle_numbers(numbers, [7, 1]).tolist()
    assert count < 1000 or order.tolist() != shuffle_numbers(numbers, [7, 2]).tolist()
    assert count < 1000 or order.tolist() != shuffle_numbers(numbers, [8, 1]).tolist()


def test_every_order_is_as_likely() -> None:
    drawn = Counter(tuple(shuffle_numbers(numpy.arange(4), [seed, 0]).tolist()) for seed in range(24 * 400))
    assert len(drawn) == 24
    # Chi-square with 23 degrees of freedom; above 50 with a probability of 0.001, but the seeds are always these.
    assert sum((count - 400) ** 2 / 400 for count in drawn.values()) < 50


@pytest.mark.parametrize("count", [10, 100_000])
def test_epochs_that_follow_one_another_have_the_orders_of_their_names(count: int) -> None:
    numbers = numpy.arange(count)
    ahead = Ahead()
    for epoch in (0, 1, 2, 2, 7, 8, 3):
        assert ahead.draw_order(numbers, (5, 1), epoch).tolist() == shuffle_numbers(numbers, [5, 1, epoch]).tolist()
    assert ahead.draw_order(numbers, (6, 1), 4).tolist() == shuffle_numbers(numbers, [6, 1, 4]).tolist()
