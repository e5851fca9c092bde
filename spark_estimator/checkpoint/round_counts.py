"""Counts a rank's steps, and the time since its last checkpoint, over the rounds of an elastic job."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from spark_estimator.checkpoint import schedule
from spark_estimator.collectives import context, launcher_link
from spark_estimator.collectives.objects import allgather_object


@dataclass
class _Counted:
    """What this process has counted.

    Attributes:
        steps: so far.
        commits: how many there were then, of a state that counts these; None: no state does.
        last_steps: of the last checkpoint that was due, or at the beginning.
        last_time: when that was, by this rank's clock, in seconds.
    """

    steps: int
    commits: int | None
    last_steps: int
    last_time: float


# By the root of the checkpoints: a round's Checkpointer ends with the round.
_counted: dict[str, _Counted] = {}


@dataclass(frozen=True)
class RoundStart:
    """Where a round begins; equal on all ranks.

    Attributes:
        group: the name of the round's writers.
        steps: so far; more than 0 in a round of an elastic job after others: those that a rank of them has counted.
        since: the steps since a checkpoint was due.
        passed: the seconds since then.
    """

    group: str
    steps: int = 0
    since: int = 0
    passed: float = 0.0


class RoundCounts:
    """The counts for one folder of checkpoints.

    Args:
        root: of the checkpoints.
        commits: returns the number of commits of a state, or None unless it has ``mode="step"``; None: no state counts.
    """

    def __init__(self, root: str, commits: Callable[[], int | None] | None) -> None:
        self._root = root
        self._commits = commits

    def begin(self) -> RoundStart:
        """Counts on from the rounds before. A collective where this process is a rank."""
        begun = self._agreed()
        last_steps, last_time = begun.steps - begun.since, schedule.clock() - begun.passed
        _counted[self._root] = _Counted(begun.steps, self._committed(), last_steps, last_time)
        return begun

    def stepped(self, steps: int) -> None:
        """A step was counted; a state that counts commits counts it by its commit."""
        if self._committed() is None:
            _counted[self._root].steps = steps

    def made(self, steps: int) -> None:
        """A checkpoint was due, or was restored: the next one is counted from here."""
        _counted[self._root] = _Counted(steps, self._committed(), steps, schedule.clock())

    def _agreed(self) -> RoundStart:
        group, steps, since, passed = secrets.token_hex(4), 0, 0, 0.0
        if not context.is_initialized():
            return RoundStart(group)
        counted = _counted.get(self._root)
        if counted is not None:
            # Of a state that counts commits, a step counts by its commit, even if `step` was not called after it.
            steps = counted.steps + (self._committed() or 0) - (counted.commits or 0)
            since, passed = max(steps - counted.last_steps, 0), schedule.clock() - counted.last_time
        of_ranks = allgather_object((steps, since, passed, group), name="checkpoint.group")
        group = of_ranks[0][-1]
        if launcher_link.link() is None:
            return RoundStart(group)
        steps, since, passed, _ = max(of_ranks)
        return RoundStart(group, steps, since, passed)

    def _committed(self) -> int | None:
        return None if self._commits is None else self._commits()
