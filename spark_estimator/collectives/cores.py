"""How many cores this process may use, which decides whether waiting may spin."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_SPIN_MICROSECONDS = 2


def available_cores() -> int:
    """Cores that the process may run on: its affinity, or its control group's quota where that is less."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return max(1, math.floor(min(cores, _quota())))


def spin_microseconds(local_size: int, cores: int) -> int:
    """How long a wait in shared memory may spin when the user has not said.

    A spinning wait answers ten times sooner than a sleeping one when every rank has a core for it, and costs ten
    times the whole operation when it keeps a core from the rank that is waited for. So: only where each rank of this
    host has two cores, one for its collectives and one for its computing.

    Args:
        local_size: ranks on this host.
        cores: that they share.
    """
    return _SPIN_MICROSECONDS if cores >= 2 * local_size else 0


def _quota() -> float:
    """Cores' worth of time that the control group may use; infinite when nothing limits it."""
    with suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1.0, int(limit) / int(period))  # "max" for no limit ends in the ValueError
    with suppress(OSError, ValueError):
        limit_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
        if limit_us > 0:
            return max(1.0, limit_us / period_us)
    return math.inf
