"""A rank's rows whose batches a user's function makes, for each row again in each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.rank.rank_rows import Batch, RankRows


@dataclass(frozen=True)
class FunctionRows(RankRows):
    """Rows that are kept as bytes.

    Attributes:
        kept: reads them, and calls the function.
        fields: of the batches.
    """

    kept: KeptRows | None = None
    fields: tuple[Field, ...] = ()

    @classmethod
    def of(cls, rows: RankRows, kept: KeptRows, fields: Sequence[Field]) -> FunctionRows:
        """The same rows."""
        return cls(rows.matrices, rows.chosen, rows.counts, rows.rank, rows.read, kept, tuple(fields))

    def batches(
        self, batch_size: int, most_steps: int | None = None, order: tuple[int, int] | None = None, first: int = 0
    ) -> Iterator[Batch]:
        """As `RankRows.batches`."""
        assert self.kept is not None
        for batch in super().batches(batch_size, most_steps, order, first):
            yield replace(batch, matrices=self.kept.matrices(batch.matrices[0], self.fields))
