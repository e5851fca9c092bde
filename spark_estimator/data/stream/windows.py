"""Windows of rows in memory: batches are taken from one while a thread fills the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.stream.order import Order, Window
from spark_estimator.data.stream.pieces import Matrices


class RangeCursor:
    """Rows of one range, a few at a time.

    Args:
        batches: of the range's rows, from the first wanted one on.
    """

    def __init__(self, batches: Iterator[Matrices]) -> None:
        self._batches = batches
        self._batch: Matrices = ()
        self._place = 0

    def take(self, into: Sequence[Array], positions: Array) -> None:
        """Copy the next rows into matrices.

        Args:
            into: [fields] each [rows, width].
            positions: [rows to copy] the number of the row of `into` that each becomes.
        """
        while len(positions):
            if not self._batch or self._place == len(self._batch[0]):
                self._batch, self._place = next(self._batches), 0
            count = min(len(positions), len(self._batch[0]) - self._place)
            for target, source in zip(into, self._batch, strict=True):
                _view_items(target)[positions[:count]] = _view_items(source[self._place : self._place + count])
            self._place, positions = self._place + count, positions[count:]

    def close(self) -> None:
        """Close the file that is read."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _view_items(matrix: Array) -> Array:
    """Return [rows, width] as [rows] items of a row's bytes: NumPy puts these in other places several times as fast."""
    row_bytes = matrix.shape[1] * matrix.itemsize
    return matrix.view(numpy.dtype((numpy.void, row_bytes))).reshape(-1) if row_bytes else matrix


@dataclass(frozen=True)
class Filled:
    """A window in memory.

    Attributes:
        window: which it is.
        matrices: [fields] each at least [rows, width], in the order in which they are read; the next window but one
            replaces its rows.
    """

    window: Window
    matrices: Sequence[Array]


class WindowReader:
    """Fills the windows of one epoch ahead.

    Args:
        windows: in order.
        rows_from: (number of a range, rows of it) reads a range from the first of these rows to its end.
        fields: of the rows.
        most_rows: of a window.
        order, rank: as of `Window.draw_order`.
    """

    def __init__(
        self,
        windows: Iterator[Window],
        rows_from: Callable[[int, Range], Iterator[Matrices]],
        fields: Sequence[Field],
        most_rows: int,
        order: Order,
        rank: int,
    ) -> None:
        self._windows = windows
        self._rows_from = rows_from
        self._order = order
        self._rank = rank
        self._buffers = [[numpy.empty((most_rows, each.width), each.stored_dtype) for each in fields] for _ in range(2)]
        # Of the ranges of the present bundle.
        self._cursors: dict[int, RangeCursor] = {}

    def read_windows(self) -> Generator[Filled, None, None]:
        """Yield the windows, one after the other."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="spark_estimator windows")
        try:
            number = 0
            ahead: Future[Filled | None] = pool.submit(self._fill, self._buffers[0])
            while (filled := ahead.result()) is not None:
                number += 1
                ahead = pool.submit(self._fill, self._buffers[number % 2])
                yield filled
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._close(self._cursors)

    def _fill(self, buffer: Sequence[Array]) -> Filled | None:
        window = next(self._windows, None)
        if window is None:
            return None
        range_numbers = {number for number, _ in window.parts}
        self._close([number for number in self._cursors if number not in range_numbers])
        # Rows are put where they are read, by this thread: the training's thread then copies memory in sequence.
        positions = numpy.empty(window.rows, numpy.int64)
        positions[window.draw_order(self._order, self._rank)] = numpy.arange(window.rows)
        for number, part in window.parts:
            cursor = self._cursors.get(number)
            if cursor is None:
                cursor = self._cursors[number] = RangeCursor(self._rows_from(number, part))
            here, positions = positions[: part.rows], positions[part.rows :]
            cursor.take(buffer, here)
        return Filled(window, buffer)

    def _close(self, numbers: Sequence[int] | dict[int, RangeCursor]) -> None:
        for number in list(numbers):
            self._cursors.pop(number).close()
