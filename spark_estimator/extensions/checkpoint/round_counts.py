"""Counts a rank's steps and time since its last checkpoint over the rounds of an elastic job, and the beginnings."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from spark_estimator.checkpoint import schedule
from spark_estimator.collectives import launcher_link
from spark_estimator.env import ATTEMPT_VARIABLE
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import folders
from spark_estimator.store import FilesystemStore
from spark_estimator.torch import allgather_object, broadcast_object, is_initialized, rank


@dataclass
class _Counted:
    """What this process has counted.

    Attributes:
        steps: so far.
        commits: how many there were then, of a state that counts these; None: no state does.
        last_steps: of the last checkpoint that was due, or at the beginning.
        last_time: when that was, by this rank's clock, in seconds.
        generation: of the round's checkpoints.
    """

    steps: int
    commits: int | None
    last_steps: int
    last_time: float
    generation: int


# By the root of the checkpoints: a round's Checkpointer ends with the round.
_counted: dict[str, _Counted] = {}


@dataclass(frozen=True)
class RoundStart:
    """Where a round begins; equal on all ranks.

    Attributes:
        group: the name of the round's writers.
        generation: of its checkpoints, higher than that of all before.
        steps: so far; more than 0 in a round of an elastic job after others: those that a rank of them has counted.
        since: the steps since a checkpoint was due.
        passed: the seconds since then.
    """

    group: str
    generation: int
    steps: int = 0
    since: int = 0
    passed: float = 0.0


class RoundCounts:
    """The counts for one folder of checkpoints.

    Args:
        store: its `prefix_path` is the folder.
        commits: returns the number of commits of a state, or None unless it has ``mode="step"``; None: no state counts.
    """

    def __init__(self, store: FilesystemStore, commits: Callable[[], int | None] | None) -> None:
        self._store = store
        self._root = store.prefix_path
        self._commits = commits

    def begin(self) -> RoundStart:
        """Counts on from the rounds before. A collective where this process is a rank.

        Raises:
            DataError: on all ranks: the folder cannot be read.
        """
        begun = self._agreed()
        last_steps, last_time = begun.steps - begun.since, schedule.clock() - begun.passed
        _counted[self._root] = _Counted(begun.steps, self._committed(), last_steps, last_time, begun.generation)
        return begun

    def stepped(self, steps: int) -> None:
        """A step was counted; a state that counts commits counts it by its commit."""
        if self._committed() is None:
            _counted[self._root].steps = steps

    def made(self, steps: int) -> None:
        """A checkpoint was due, or was restored: the next one is counted from here."""
        generation = _counted[self._root].generation
        _counted[self._root] = _Counted(steps, self._committed(), steps, schedule.clock(), generation)

    def begun_again(self, generation: int) -> None:
        """The training has begun again within a round, by checkpoints of a higher generation."""
        _counted[self._root].generation = generation

    def _agreed(self) -> RoundStart:
        group, steps, since, passed, generation = secrets.token_hex(4), 0, 0, 0.0, 0
        if not is_initialized():
            return RoundStart(group, self._first_generation())
        counted = _counted.get(self._root)
        if counted is not None:
            # Of a state that counts commits, a step counts by its commit, even if `step` was not called after it.
            steps = counted.steps + (self._committed() or 0) - (counted.commits or 0)
            since, passed = max(steps - counted.last_steps, 0), schedule.clock() - counted.last_time
            generation = counted.generation
        of_ranks = allgather_object((steps, since, passed, generation, group), name="checkpoint.group")
        group = of_ranks[0][-1]
        if launcher_link.link() is None:
            return RoundStart(group, self._first_generation())
        steps, since, passed, _, _ = max(of_ranks)
        before = max(generation for _, _, _, generation, _ in of_ranks)
        # What a later round begins does not depend on the store, which may be away for a moment.
        return RoundStart(group, before + 1 if before else self._first_generation(), steps, since, passed)

    def _first_generation(self) -> int:
        """A number above that of all checkpoints in the folder, and of those that earlier attempts still write.

        A collective where this process is a rank: rank 0 reads the folder.
        """
        result: int | str = 0
        if not is_initialized() or rank() == 0:
            # Each attempt adds at least one more than the attempt before, whose writers may not have begun to write.
            attempt = int(os.environ.get(ATTEMPT_VARIABLE) or 1)
            try:
                present = folders.folders_in(self._store, self._root)
                result = attempt + max((folder.generation for folder in present), default=0)
            except Exception as error:  # its class depends on the store
                result = (
                    f"{self._root} cannot be read on host {socket.gethostname()}: {type(error).__name__}: {error}. "
                    "Which checkpoints it has is not known."
                )
        if is_initialized():
            result = broadcast_object(result, name="checkpoint.generation")
        if isinstance(result, str):
            raise DataError(result)
        return result

    def _committed(self) -> int | None:
        return None if self._commits is None else self._commits()
