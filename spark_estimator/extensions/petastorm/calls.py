"""Calls of a transform's function on rows of the spool: the number of rows at a time, and the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_estimator.data.fields import Array
from spark_estimator.extensions.petastorm.pages import Page, cut, rows_in
from spark_estimator.extensions.petastorm.row_views import OrderedViews

# It is called for more rows while a call takes less time than this: the first batch does not wait long for it.
_CALL_SECONDS = 0.05


class CallSize:
    """For how many batches a function is called at a time.

    Args:
        most: batches.
    """

    def __init__(self, most: int) -> None:
        self.batches = 1
        self._most = most

    def took(self, seconds: float) -> None:
        """Notes how long a call took."""
        if seconds < _CALL_SECONDS / 2:
            self.batches = min(self._most, 2 * self.batches)
        elif seconds > 2 * _CALL_SECONDS:
            self.batches = max(1, self.batches // 2)


class TransformCall(NamedTuple):
    """The rows of one call.

    Attributes:
        numbers: [rows] in the spool; all are of one epoch.
        views: by the names of columns of wide arrays: [rows] of the rows' arrays.
        first: how many rows complete the batch that the previous call has begun; 0: it has not.
    """

    numbers: Array
    views: Mapping[str, Array]
    first: int


def calls_of(
    orders: Iterator[Array], size: int, call_size: CallSize, views: Mapping[str, OrderedViews]
) -> Iterator[TransformCall]:
    """The calls for some epochs.

    Args:
        orders: [rows] of all rows, for each epoch.
        size: rows of a batch.
        call_size: of the calls to come.
        views: the columns of wide arrays.
    """
    begun = 0
    for order in orders:
        ordered = {name: view.in_order(order) for name, view in views.items()}
        start = 0
        while start < len(order):
            first = (size - begun) % size
            stop = min(len(order), start + call_size.batches * size)
            rows = {name: column[start:stop] for name, column in ordered.items()}
            yield TransformCall(order[start:stop], rows, min(first, stop - start))
            begun, start = (begun + stop - start) % size, stop


@dataclass(frozen=True)
class TransformedRows:
    """The result of a call.

    Attributes:
        page: columns that it has changed, and scalars.
        unchanged: the other columns; they are in the spool.
        numbers: [rows] of the rows, in the spool.
        first: as of `TransformCall`.
    """

    page: Page
    unchanged: Sequence[str]
    numbers: Array
    first: int = 0

    def pages(
        self, size: int, names: Sequence[str], gathered: Callable[[Array, Sequence[str]], Page]
    ) -> Iterator[Page]:
        """The rows; `size` at a time, as they are gathered, or all.

        Args:
            names: of all columns, in their order.
        """
        if not self.unchanged:
            if rows_in(self.page):
                yield {name: self.page[name] for name in names}
            return
        starts = [*([0] if self.first else []), *range(self.first, len(self.numbers), size)]
        for start, stop in itertools.pairwise([*starts, len(self.numbers)]):
            kept = gathered(self.numbers[start:stop], self.unchanged)
            part = {**cut(self.page, start, stop), **kept}
            yield {name: part[name] for name in names}
