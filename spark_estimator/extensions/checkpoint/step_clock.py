"""`StepClock`: steps over the rounds of an elastic job, when a checkpoint is due, and the name of its folder."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch

from spark_estimator.checkpoint import schedule
from spark_estimator.collectives import launcher_link
from spark_estimator.env import ATTEMPT_VARIABLE, Settings
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import folders
from spark_estimator.store import FilesystemStore
from spark_estimator.torch import allgather_object, broadcast, broadcast_object, is_initialized, rank


@dataclass
class _Counted:
    """What this process has counted."""

    steps: int  # so far
    commits: int | None  # how many there were then, of a state that counts these; None: no state does
    last_steps: int  # of the last checkpoint that was due, or at the beginning
    last_time: float  # when that was, by this rank's clock, in seconds
    generation: int  # of the round's checkpoints


# By the root of the checkpoints: a round's Checkpointer ends with the round.
_counted: dict[str, _Counted] = {}


class StepClock:
    """Counts on from the rounds before. All methods give the same on all ranks. A collective where this is a rank.

    Args:
        store: its `prefix_path` is the folder of the checkpoints.
        commits: returns the number of commits of a state, or None unless it has ``mode="step"``; None: no state counts.
        every_steps, every: when a checkpoint is due, see `schedule.Schedule`. One is also due when a rank's machine is
            about to be taken back.

    Attributes:
        steps: so far.
        continues: this is a later round of an elastic job, whose state is newer than every checkpoint.

    Raises:
        DataError: on all ranks: the folder cannot be read.
    """

    def __init__(
        self,
        store: FilesystemStore,
        commits: Callable[[], int | None] | None = None,
        every_steps: int | None = None,
        every: timedelta | None = None,
    ) -> None:
        self._store = store
        self._root = store.prefix_path
        self._commits = commits
        settings = Settings.read()
        self._heeds_warnings = bool(settings.preemption_signal or settings.preemption_command)
        self._last, self.steps, since, passed = self._find_start()
        self.continues = self.steps > 0
        self._schedule = schedule.Schedule(
            every_steps,
            every,
            _get_first_clock if is_initialized() else schedule.read_clock,
            schedule.find_new_warning if self._heeds_warnings and is_initialized() else None,
        )
        if self.continues:
            self._schedule.resume(since, passed)
        self._note(self.steps - since, schedule.read_clock() - passed)

    def count(self) -> bool:
        """Count a step. Return whether a checkpoint is due after it. A collective."""
        self.steps += 1
        if self._count_commits() is None:  # a state that counts commits counts the step by its commit
            _counted[self._root].steps = self.steps
        return self._schedule.is_due()

    def begin_interval(self) -> None:
        """Count steps and time from here: a checkpoint is due now, or was restored. A collective."""
        self._schedule.restart()
        self._note(self.steps, schedule.read_clock())

    def name_folder(self, date: int) -> str:
        """Return the name of the present step's checkpoint, which was copied at `date`; newer than all before."""
        generation = self._last.generation + (self.steps <= self._last.step)  # the training has begun again
        self._last = folders.Folder(generation, self.steps, self._last.group, date)
        _counted[self._root].generation = generation
        return self._last.name

    def _note(self, last_steps: int, last_time: float) -> None:
        commits, generation = self._count_commits(), self._last.generation
        _counted[self._root] = _Counted(self.steps, commits, last_steps, last_time, generation)

    def _find_start(self) -> tuple[folders.Folder, int, int, float]:
        """Return a folder before the round's first, the steps so far, and steps and seconds since one was due.

        The steps are more than 0 in a round after others: the most that a rank of them has counted.
        """
        group, steps, since, passed, generation = secrets.token_hex(4), 0, 0, 0.0, 0
        if not is_initialized():
            return folders.Folder(self._find_generation(), -1, group, 0), steps, since, passed
        counted = _counted.get(self._root)
        if counted is not None:
            # Of a state that counts commits, a step counts by its commit, even if `count` was not called after it.
            steps = counted.steps + (self._count_commits() or 0) - (counted.commits or 0)
            since, passed = max(steps - counted.last_steps, 0), schedule.read_clock() - counted.last_time
            generation = counted.generation
        counted_here = (steps, since, passed, generation, self._heeds_warnings, group)
        of_ranks = allgather_object(counted_here, name="checkpoint.group")
        *_, self._heeds_warnings, group = of_ranks[0]
        if launcher_link.link() is None:
            return folders.Folder(self._find_generation(), -1, group, 0), 0, 0, 0.0
        steps, since, passed, *_ = max(of_ranks)
        before = max(generation for _, _, _, generation, *_ in of_ranks)
        # What a later round begins does not depend on the store, which may be away for a moment.
        generation = before + 1 if before else self._find_generation()
        if before and rank() == 0:
            arguments = (self._store, self._root, generation)
            threading.Thread(target=folders.mark_beginning, args=arguments, daemon=True).start()
        return folders.Folder(generation, -1, group, 0), steps, since, passed

    def _find_generation(self) -> int:
        """Return a number above that of all checkpoints in the folder, and of those that earlier attempts still write.

        A collective where this process is a rank: rank 0 reads the folder.
        """
        result: int | str = 0
        if not is_initialized() or rank() == 0:
            # Each attempt adds at least one more than the attempt before, whose writers may not have begun to write.
            attempt = int(os.environ.get(ATTEMPT_VARIABLE) or 1)
            try:
                present = [folder.generation for folder in folders.list_folders(self._store, self._root)]
                result = attempt + max((*present, *folders.find_marks(self._store, self._root)), default=0)
                folders.mark_beginning(self._store, self._root, result)
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

    def _count_commits(self) -> int | None:
        return None if self._commits is None else self._commits()


def _get_first_clock() -> float:
    mine = torch.tensor([schedule.read_clock()], dtype=torch.float64, device="cpu")
    return broadcast(mine, 0, name="checkpoint.clock").item()
