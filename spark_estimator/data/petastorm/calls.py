"""Calls of a transform's function on rows of the spool: the number of rows at a time, and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_estimator.data.fields import Array
from spark_estimator.data.petastorm.pages import Page, cut, rows_in

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


@dataclass(frozen=True)
class TransformedRows:
    """The result of a call.

    Attributes:
        page: columns that it has changed, and scalars.
        unchanged: the other columns; they are in the spool.
        numbers: [rows] of the rows, in the spool.
    """

    page: Page
    unchanged: Sequence[str]
    numbers: Array

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
        for start in range(0, len(self.numbers), size):
            kept = gathered(self.numbers[start : start + size], self.unchanged)
            part = {**cut(self.page, start, start + size), **kept}
            yield {name: part[name] for name in names}
