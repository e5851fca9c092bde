"""Row groups of a shard as pages, epoch after epoch, read ahead in threads; and pages cut into batches."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import Piece
from spark_estimator.extensions.petastorm.pages import Page, count_rows, join_pages, slice_page


@dataclass(frozen=True)
class Order:
    """The order in which the pieces of a shard are read.

    Attributes:
        num_epochs: None: there is no end.
        seed: determines the orders.
        groups: row groups have a new order in each epoch.
        rows: rows within a piece do.
    """

    num_epochs: int | None
    seed: int
    groups: bool
    rows: bool


#: Some rows, as arrays of columns or one by one.
_Rows = TypeVar("_Rows", Page, list[Any])


def read_pages(
    pieces: list[Piece], make: Callable[[Piece], _Rows], order: Order, threads: int, first_epoch: int = 0
) -> Iterator[_Rows]:
    """Yield the pages of all epochs, or lists of rows; those without rows are left out.

    Args:
        make: reads a piece; called in threads.
        threads: that read ahead; 0: pieces are read when they are asked for.

    Raises:
        DataError: an epoch of a reader without end has no rows.
    """
    if not pieces:
        return
    epochs = (
        itertools.count(first_epoch) if order.num_epochs is None else range(first_epoch, first_epoch + order.num_epochs)
    )

    def read_page(epoch: int, number: int) -> _Rows:
        result = make(pieces[number])
        if order.rows and _count(result) > 1:
            result = _take_rows(
                result, numpy.random.default_rng([order.seed, epoch, number]).permutation(_count(result))
            )
        return result

    def generate_numbers() -> Iterator[tuple[int, int]]:
        for epoch in epochs:
            chosen = numpy.arange(len(pieces))
            if order.groups:
                numpy.random.default_rng([order.seed, epoch]).shuffle(chosen)
            for number in chosen.tolist():
                yield epoch, number

    empty = 0
    for result in _read_ahead(read_page, generate_numbers(), threads):
        if _count(result):
            empty = 0
            yield result
            continue
        empty += 1
        if order.num_epochs is None and empty >= len(pieces):
            raise DataError("transform_spec's function returned no rows for all row groups, and num_epochs=None.")


def _count(rows: Page | list[Any]) -> int:
    return len(rows) if isinstance(rows, list) else count_rows(rows)


def _take_rows(rows: Any, numbers: Array) -> Any:
    if isinstance(rows, list):
        return [rows[number] for number in numbers.tolist()]
    return {name: array[numbers] for name, array in rows.items()}


def _read_ahead(page: Callable[[int, int], _Rows], numbers: Iterator[tuple[int, int]], threads: int) -> Iterator[_Rows]:
    if not threads:
        yield from itertools.starmap(page, numbers)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="spark_estimator reader")
    begun: deque[Future[_Rows]] = deque()
    try:
        for epoch, number in numbers:
            begun.append(pool.submit(page, epoch, number))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def choose_threads(pool: str, workers_count: int | None) -> int:
    """Return the threads for petastorm's arguments: at most one for each core, as more would only hold more row
    groups.

    Raises:
        ValueError: the pool is none of petastorm's, or there is less than one worker.
    """
    if pool not in ("thread", "process", "dummy"):
        raise ValueError(f"reader_pool_type must be 'thread', 'process' or 'dummy'; got {pool!r}.")
    if workers_count is not None and workers_count < 1:
        raise ValueError(f"workers_count must be at least 1; got {workers_count}.")
    return 0 if pool == "dummy" else min(workers_count or 10, os.cpu_count() or 1)


def rebatch(source: Iterator[Page], batch_size: int, capacity: int = 0, seed: int = 0) -> Iterator[Page]:
    """Yield pages cut into batches of exactly `batch_size` rows; the last one may have fewer.

    Args:
        capacity: each batch is drawn from at least this number of rows, while that many remain; 0: rows keep
            their order.
        seed: determines what is drawn.
    """
    mixed = source if not capacity else _mix(source, batch_size, capacity, numpy.random.default_rng([seed, 1]))
    pending: list[Page] = []
    count = 0
    for page in mixed:
        rows, start = count_rows(page), 0
        if pending:
            start = min(rows, batch_size - count)
            pending.append(slice_page(page, 0, start))
            count += start
            if count < batch_size:
                continue
            yield join_pages(pending)
            pending, count = [], 0
        while rows - start >= batch_size:
            yield page if rows == batch_size else slice_page(page, start, start + batch_size)
            start += batch_size
        if start < rows:
            pending, count = [slice_page(page, start, rows)], rows - start
    if pending:
        yield join_pages(pending)


def _mix(source: Iterator[Page], batch_size: int, capacity: int, chance: numpy.random.Generator) -> Iterator[Page]:
    """Yield pages whose rows are drawn from at least `capacity` rows, while that many remain."""
    pending: list[Page] = []
    count = 0
    # Rows are mixed when half the capacity has been read, so that each is moved three times and not for each page.
    enough = batch_size + capacity + capacity // 2
    for page in itertools.chain(source, [None]):
        if page is not None:
            pending.append(page)
            count += count_rows(page)
            if count < enough:
                continue
        elif not count:
            return
        whole = join_pages(pending)
        order = chance.permutation(count)
        whole = {name: array[order] for name, array in whole.items()}
        stop = count - capacity if page is not None else count
        yield slice_page(whole, 0, stop)
        pending, count = [slice_page(whole, stop, count)], count - stop
