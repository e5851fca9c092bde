"""Detects a process that stays stopped by a signal: after its last collective no rank waits for it."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

#: How often to look.
INTERVAL = timedelta(seconds=1)


class FrozenWatch:
    """Looks at a process now and then.

    Args:
        limit: a process that is stopped for longer is frozen; zero: no process is.
    """

    def __init__(self, limit: timedelta) -> None:
        self.limit = limit
        self._looked = 0.0
        self._stopped_since: float | None = None

    def is_frozen(self, pid: int) -> bool:
        """Whether the process has been stopped each time for the limit. Call it every `INTERVAL`."""
        return bool(self.limit) and self.stopped_for(pid) >= self.limit

    def stopped_for(self, pid: int) -> timedelta:
        """How long the process has been found stopped, each time; zero if it runs, or has not been found so before."""
        now = time.monotonic()
        # If this process has not checked for long, it was stopped, too: then the time does not count.
        paused = now - self._looked > 3 * INTERVAL.total_seconds()
        self._looked = now
        if not _is_stopped(pid):
            self._stopped_since = None
        elif self._stopped_since is None or paused:
            self._stopped_since = now
        return timedelta(seconds=0 if self._stopped_since is None else now - self._stopped_since)


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it. A debugger (state t) or a container that is paused is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):  # it has ended, or there is no /proc
        return False
