"""A rank's rows whose batches a user's function makes, for each row again in each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows


class FunctionRows(EpochRows):
    """Rows that are kept as bytes.

    Args:
        rows: the bytes.
        kept_rows: reads them, and calls the function.
    """

    def __init__(self, rows: EpochRows, kept_rows: KeptRows) -> None:
        self.counts = rows.counts
        self.rank = rows.rank
        self._rows = rows
        self._kept = kept_rows

    def read_batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        for batch in self._rows.read_batches(batch_size, most_steps, order, first):
            yield replace(batch, matrices=self._kept.encode_kept(batch.matrices[0]))

    def compute_spread(self) -> list[int]:
        return self._rows.compute_spread()

    def make_leg(self, batch_size: int, steps: int) -> dict[str, Any]:
        return self._rows.make_leg(batch_size, steps)

    def find_remaining(self, legs: Sequence[Mapping[str, Any]], order: tuple[int, int] | None) -> EpochRows:
        return FunctionRows(self._rows.find_remaining(legs, order), self._kept)
