"""Sends records of an estimator's training from a rank to the driver: one for each epoch, or each few steps.

Unlike a progress report, which the next one replaces, every record arrives, in the order in which it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: (rank, record): called on the driver for each record of a rank.
TakeRecord = Callable[[int, Mapping[str, Any]], None]

_sink: Callable[[dict[str, Any]], None] | None = None


def send_record(record: Mapping[str, Any]) -> None:
    """Send a record to the driver; outside of a job it is dropped. `record`: plain values, as JSON has them."""
    if _sink is not None:
        _sink(dict(record))


class StepRecorder:
    """Sends a record of this rank's training loss after each `every` batches, counted from the first epoch on.

    It covers the batches since the record before, or since the epoch began.

    Args:
        every: batches.
        ranks: the number of ranks, whose records the driver puts together.
    """

    def __init__(self, every: int, ranks: int) -> None:
        self._every = every
        self._ranks = ranks
        self._counted: tuple[int, float] | None = None

    def begin_epoch(self, step: int) -> None:
        """Begin an epoch; `step`: batches that were finished before the checkpoint from which it continues."""
        self._counted = None if step else (0, 0.0)

    def end_step(self, epoch: int, step: int, steps: int, rows: int, loss: float | None) -> None:
        """Count a finished batch, and send a record, with the rows and mean loss of the epoch so far, if it is due."""
        total = 0.0 if loss is None else float(loss) * rows
        if self._counted is not None and (epoch * steps + step) % self._every == 0:
            before, earlier = self._counted
            record = {"epoch": epoch, "step": step, "steps": steps, "ranks": self._ranks}
            send_record({**record, "rows": rows - before, "loss": total - earlier})
            self._counted = rows, total
        elif self._counted is None:
            self._counted = rows, total


def set_sink(sink: Callable[[dict[str, Any]], None] | None) -> None:
    """Set the receiver of this process's records; None: records are dropped. The worker program calls it."""
    global _sink
    _sink = sink
