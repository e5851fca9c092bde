"""Requests of other threads to a supervisor's thread, and the pipe that wakes it."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from datetime import timedelta

# The supervisor reads what a worker has printed so far before it takes another rank.
_RENAMING = timedelta(seconds=0.5)


@dataclass(frozen=True)
class SupervisorRequest:
    """What the supervisor has to do now.

    Attributes:
        rank: the worker's new rank; None: it keeps its rank.
        stop_reason: the text behind "was stopped"; '': it continues.
        at_once: stop it without time to end on its own.
    """

    rank: int | None
    stop_reason: str
    at_once: bool


class SupervisorRequests:
    """A mailbox of one supervisor; its descriptor is readable when there is something in it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        self._lock = threading.Lock()
        self._stop_reason = ""
        self._at_once = False
        self._rank: int | None = None
        self._renamed = threading.Event()

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._read

    def stop(self, reason: str, *, at_once: bool) -> None:
        """Ask for the worker's end; the first reason is kept. Harmless after `close`."""
        with self._lock:
            self._at_once |= at_once
            self._stop_reason = self._stop_reason or reason
            self._wake()

    def rename(self, rank: int) -> bool:
        """Ask for another rank, and wait a moment. Return whether the supervisor's thread has done it."""
        with self._lock:
            self._rank = rank
            self._renamed.clear()
            if self._write < 0:
                return False
            self._wake()
        return self._renamed.wait(_RENAMING.total_seconds())

    def take(self) -> SupervisorRequest:
        """Take the pending request; a stop is repeated each time. Call `confirm_rank` when the rank has changed."""
        os.read(self._read, 4096)
        with self._lock:
            rank, self._rank = self._rank, None
            return SupervisorRequest(rank, self._stop_reason, self._at_once)

    def confirm_rank(self) -> None:
        """Confirm that the worker has its new rank."""
        self._renamed.set()

    def close(self) -> None:
        """Close both ends: requests have no effect any more. Idempotent."""
        with self._lock:
            if self._write >= 0:
                os.close(self._read)
                os.close(self._write)
                self._write = -1

    def _wake(self) -> None:
        if self._write >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write, b"\0")
