"""Decides after which steps to make a checkpoint, the same on all ranks though their clocks differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import numpy

from spark_estimator.collectives import arrays, launcher_link, preemption

# The first rank's clock is asked so often in the time between two checkpoints, so they are late by a tenth at most.
_QUESTIONS = 10


class Schedule:
    """Counts steps.

    Args:
        every_steps: due after this number of steps; None: their number does not matter.
        every: due after this time; None: time does not matter.
        first_clock: returns the first rank's clock on all ranks, in seconds; a collective, called at the same steps.
        is_warned: returns whether one is due because a rank's machine is about to be taken back; a collective, called
            after each step that makes none due; None: there are no warnings.
    """

    def __init__(
        self,
        every_steps: int | None,
        every: timedelta | None,
        first_clock: Callable[[], float],
        is_warned: Callable[[], bool] | None = None,
    ) -> None:
        self._every_steps = every_steps
        self._seconds = None if every is None else every.total_seconds()
        self._first_clock = first_clock
        self._is_warned = is_warned
        self._since = 0
        self._began: float | None = None
        self._asked_after = 0
        self._ask_after = 1

    def resume(self, since: int, passed: float) -> None:
        """Count on from a checkpoint that was made `since` steps and `passed` seconds ago; the same on all ranks."""
        self._since = since
        if self._seconds is not None:
            self._began = self._first_clock() - passed
            self._asked_after = since

    def is_due(self) -> bool:
        """Count a step. Return whether a checkpoint is due after it."""
        self._since += 1
        due = self._every_steps is not None and self._since >= self._every_steps
        if self._seconds is not None and not due:
            due = self._is_time()
        return due or (self._is_warned is not None and self._is_warned())

    def restart(self) -> None:
        """Count steps and time from here: a checkpoint is made now."""
        self._since = 0
        self._asked_after = 0
        if self._seconds is not None:
            self._began = self._first_clock()

    def _is_time(self) -> bool:
        assert self._seconds is not None
        if self._began is not None and self._since < self._asked_after + self._ask_after:
            return False
        now = self._first_clock()
        if self._began is None:
            self._began = now
            self._asked_after = self._since
            return False
        passed = now - self._began
        steps_a_second = self._since / passed if passed > 0 else float(self._since)
        self._ask_after = max(1, int(steps_a_second * self._seconds / _QUESTIONS))
        self._asked_after = self._since
        return passed >= self._seconds


def find_new_warning() -> bool:
    """Return whether some rank has a warning (`preemption`) that it has told no other. A collective: a byte each."""
    link, watch = launcher_link.link(), preemption.watch()
    if link is not None:
        link.exchange_warnings()
    is_new = bool(watch.reason) and not watch.is_told
    of_ranks = arrays.allgather(numpy.array([is_new], numpy.uint8), "checkpoint.warning")
    watch.is_told |= is_new
    return bool(of_ranks.any())


def read_clock() -> float:
    """Return this rank's clock, in seconds."""
    return time.monotonic()
