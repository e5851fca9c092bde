"""How the rows of an epoch are divided among ranks whose number changes within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_estimator.data.rank.epoch_rows import EpochRows


@dataclass(frozen=True)
class Division:
    """How the rows of the present epoch were divided among ranks.

    Attributes:
        earlier: parts of the epoch that other ranks have trained on: results of `EpochRows.make_leg`.
        present: such a part for the present ranks, of no steps.
    """

    earlier: tuple[Mapping[str, Any], ...]
    present: Mapping[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> Division:
        return self  # nothing changes it, so that a commit need not copy it

    def divide_again(self, steps: int, present: Mapping[str, Any]) -> Division:
        """Return the division for the ranks of a new round, after `steps` steps of the ranks before."""
        if present == self.present or not steps:
            return Division(self.earlier, present)
        return Division((*self.earlier, {**self.present, "steps": steps}), present)


def find_rest(
    rows: EpochRows, legs: Sequence[Mapping[str, Any]], order: tuple[int, int] | None, most_steps: int | None
) -> tuple[EpochRows, int | None]:
    """Return the rows of an epoch that no rank has trained on, and the most steps that are left for them.

    Args:
        rows: of the whole epoch.
        legs: `Division.earlier`.
        order, most_steps: as of `EpochRows.read_batches`.
    """
    if not legs:
        return rows, most_steps
    done = sum(leg["steps"] for leg in legs)
    return rows.find_remaining(legs, order), None if most_steps is None else max(most_steps - done, 0)
