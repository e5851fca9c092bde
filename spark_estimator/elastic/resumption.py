"""Decides at which step ranks continue after a loss, by the last commit of each."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class RecoveryState(enum.Enum):
    """A rank: COMMITTED to AGREED in ``optimizer.step()``, and back in ``commit()``; LOST until the next round."""

    FRESH = "no round has begun on this process"
    COMMITTED = "parameters and attributes are those of the last commit"
    AGREED = "parameters are those of the next commit, or are about to be"
    LOST = "a rank was lost while this one was COMMITTED"
    LOST_AGREED = "a rank was lost while this one was AGREED"


@dataclass(frozen=True)
class Facts:
    """What a rank sends to the others when a round begins.

    Attributes:
        state: of its step.
        step: of its last commit.
        rank, size: of the round before; -1: none.
        full: the step of its full copy; -1: none.
    """

    state: RecoveryState
    step: int
    rank: int
    size: int
    full: int = -1

    @property
    def is_whole(self) -> bool:
        """Return whether parameters and attributes belong together here."""
        return self.state in (RecoveryState.COMMITTED, RecoveryState.LOST)


@dataclass(frozen=True)
class Resumption:
    """The step at which the job continues; the same on all ranks.

    Attributes:
        root: the rank whose parameters and attributes count.
        step: of the commit.
        from_full: it is a full copy, to which all return.
        spread: not all ranks have that step, so that the root sends it.
    """

    root: int
    step: int
    from_full: bool
    spread: bool


def choose_resumption(facts: Sequence[Facts]) -> Resumption:
    """Choose the step at which to continue; `facts`: [ranks] of the new round."""
    whole = [rank for rank, each in enumerate(facts) if each.is_whole]
    if whole:
        step = max(facts[rank].step for rank in whole)
        root = next(rank for rank in whole if facts[rank].step == step)
        spread = any(not each.is_whole or each.step != step for each in facts)
        return Resumption(root, step, from_full=False, spread=spread)
    full = max(each.full for each in facts)
    if full < 0:  # the job begins
        return Resumption(0, 0, from_full=False, spread=True)
    return Resumption(next(rank for rank, each in enumerate(facts) if each.full == full), full, True, spread=True)
