"""One process of a training that continues when it loses a rank: what it does once, and again when ranks change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_estimator.collectives import context, launcher_link
from spark_estimator.data.rank.spool import Spool
from spark_estimator.estimators.persistence.run_lease import Fence
from spark_estimator.estimators.rank_run import record_epoch
from spark_estimator.estimators.rows.row_source import read_rank_rows
from spark_estimator.estimators.train_spec import TrainSpec


class RecoveringProcess:
    """One process: it reads its rows, and joins a training that may have begun without it."""

    def __init__(self, spec: TrainSpec) -> None:
        self._spec = spec
        self._rows: tuple[Spool, Spool] | None = None
        self._place = (-1, -1)
        self._has_joined = self._was_first = False

    def join(self, history: Sequence[dict[str, Any]], *, first: bool) -> None:
        """Begin a round.

        Args:
            first: no rank has committed yet.

        Raises:
            SupersededError: another attempt or driver has the run.
            DataError: the store cannot be written.
        """
        is_new, self._has_joined = not self._has_joined, True
        becomes_first, self._was_first = context.rank() == 0 and not self._was_first, context.rank() == 0
        if first or not (is_new or becomes_first):
            return
        if is_new and self._spec.tracking is not None:
            self._spec.tracking.start_sampling()
        fence = Fence.from_spec(self._spec)
        if context.rank() == 0 and fence is not None:
            fence.take()
        for entry in history:  # the lost rank 0 may not have sent the last one
            record_epoch(self._spec, entry)

    def count_most_ranks(self) -> int:
        """Return the ranks with which the job has begun, also if one was lost before the first commit."""
        link = launcher_link.link()
        return max(context.size(), 0 if link is None else link.most_ranks)

    def read(self, spec: TrainSpec) -> tuple[Spool, Spool]:
        """Return what `read_rank_rows` does, which it calls once for each rank and number of ranks that this process
        has.
        """
        rank_and_size = (context.rank(), context.size())
        if self._rows is None or rank_and_size != self._place:
            self._rows = None  # its files are freed before others are written
            self._rows, self._place = read_rank_rows(spec), rank_and_size
        return self._rows
