"""Makes an epoch's batches ahead, in a thread beside the training; and draws the order in which rows are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

import numpy

from spark_estimator.data.fields import Array

A = TypeVar("A")
T = TypeVar("T")

# Items are made by the group, so that handing over costs little; a group still fits in a core's cache.
_GROUP_BYTES = 512 << 10
# Groups that are begun before they are asked for: the thread works on one; the thread or the caller, whichever is idle
# first, makes the other two.
_GROUPS = 3
# Larger items are not made ahead: several at a time would take memory that the training may need.
_MOST_BYTES = 32 << 20
# To draw the order of fewer takes no time that is worth a thread.
_MANY_NUMBERS = 1 << 16


class Ahead:
    """Makes what will be asked for in one thread, the same for all epochs, so that it keeps one set of memory."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._order: tuple[tuple[int, ...], Future[Array]] | None = None

    def make_items(self, make: Callable[[A], T], arguments: Iterable[A], item_bytes: int) -> Iterator[T]:
        """Yield ``make(argument)`` for each argument, in their order; the thread has the next ones ready meanwhile.

        Where the thread does not keep up, the caller does not wait idly: it makes some of the next ones itself. An
        error of `make` is raised in the item's turn. An abandoned iteration ends after the items in progress.

        Args:
            make: is called in either thread, by one at a time for each argument.
            arguments: are taken in the caller's thread.
            item_bytes: of what `make` returns, about. Items of more than 32 MiB are made when they are asked for.
        """
        if item_bytes > _MOST_BYTES:
            yield from map(make, arguments)
            return
        size = max(1, _GROUP_BYTES // max(1, item_bytes))
        rest = iter(arguments)
        begun: deque[_Group[A, T]] = deque()
        try:
            while group := list(islice(rest, size)):
                begun.append(_Group(self._get_pool(), make, group))
                if len(begun) == _GROUPS:
                    yield from _take_next(begun)
            while begun:
                yield from _take_next(begun)
        finally:
            for each in begun:
                each.give_up()

    def draw_order(self, numbers: Array, names: Sequence[int], epoch: int) -> Array:
        """Return ``shuffle_numbers(numbers, [*names, epoch])``; that of the next epoch of these names is ready sooner.

        Args:
            numbers: the same ones in each call.
        """
        order_name, following = (*names, epoch), (*names, epoch + 1)
        drawn, self._order = self._order, None
        order = drawn[1].result() if drawn and drawn[0] == order_name else shuffle_numbers(numbers, order_name)
        if len(numbers) >= _MANY_NUMBERS:
            self._order = following, self._get_pool().submit(shuffle_numbers, numbers, following)
        return order

    def _get_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="spark_estimator batches")
        return self._pool


def _take_next(begun: deque[_Group[A, T]]) -> list[T]:
    first = begun.popleft()
    for later in begun:
        if first.done:
            break
        later.take_over()
    return first.result()


class _Group(Generic[A, T]):
    """Items that the pool's thread makes together, or the caller, if it takes them over first."""

    def __init__(self, pool: ThreadPoolExecutor, make: Callable[[A], T], arguments: Sequence[A]) -> None:
        self._act = lambda: [make(argument) for argument in arguments]
        self._made: Future[list[T]] = pool.submit(self._act)

    @property
    def done(self) -> bool:
        return self._made.done()

    def give_up(self) -> None:
        """Cancel the items: they will not be used."""
        self._made.cancel()

    def take_over(self) -> None:
        """Make the items here and now, unless the thread has begun."""
        if not self._made.cancel():
            return
        result: Future[list[T]] = Future()
        try:
            result.set_result(self._act())
        except Exception as error:
            result.set_exception(error)
        self._made = result

    def result(self) -> list[T]:
        """Return the items, once they are made; raise what making them has raised."""
        return self._made.result()


def shuffle_numbers(numbers: Array, names: Sequence[int]) -> Array:
    """Return numbers that all differ, in an order that chance has drawn, each order with the same probability.

    A key is drawn for each number, and they are sorted by it. The sort reads and writes memory in sequence; a
    shuffle by swaps, which jumps to and fro in it, takes two to three times as long for millions of numbers.

    Args:
        numbers: whole numbers from 0, less than 2**40.
        names: whole numbers that name the order, such as seed and epoch.
    """
    # The row's number is in the lower bits of its key, so that no lookup follows the sort. Numbers with equal random
    # bits keep their order: of two million numbers, one pair in 2**43.
    bits = numpy.uint64(int(numbers.max(initial=0)).bit_length())
    keys = numpy.random.default_rng(list(names)).integers(0, 1 << 64, len(numbers), numpy.uint64)
    keys >>= bits
    keys <<= bits
    keys |= numbers.astype(numpy.uint64, copy=False)
    keys.sort()
    keys &= (numpy.uint64(1) << bits) - numpy.uint64(1)
    return keys.view(numpy.int64)
