"""How many cores this process may use, and the defaults that follow from that."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.env import Decision, Settings

_ADAPTIVE = -1  # the engine's word for "as long as it pays"


def count_available_cores() -> int:
    """Return how many cores the process may run on: its affinity, or its control group's quota where that is less."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return max(1, math.floor(min(cores, _read_quota())))


def decide_settings(settings: Settings, topology: Topology, cores: int) -> dict[str, Decision]:
    """Return by field the settings that depend on the machine and the job, unless the environment has them.

    The `cores` are those that the ranks of this host share.
    """
    return {
        "spin_microseconds": _decide_spin(settings.spin_microseconds, topology, cores),
        "overlap": _decide_overlap(settings.overlap, topology, cores),
        "hierarchical_allreduce": _decide_hierarchical(settings.hierarchical_allreduce),
    }


def find_affinity_core(settings: Settings, topology: Topology) -> int:
    """Return the core for the engine's thread, -1 for none. Raises ValueError if the user's list lacks this rank."""
    cores = settings.thread_affinity
    if cores is None:
        return -1
    if topology.local_rank >= len(cores):
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY={','.join(map(str, cores))} has {len(cores)} cores, but this host has "
            f"{topology.local_size} ranks: list one core per rank."
        )
    return cores[topology.local_rank]


def _decide_spin(setting: int | None, topology: Topology, cores: int) -> Decision:
    if setting is not None:
        return Decision(setting, "environment")
    here = f"{_format_count(cores, 'core')} for {_format_count(topology.local_size, 'rank')} on this host"
    # A spinning wait answers ten times sooner than a sleeping one when every rank has a core, and costs ten times the
    # whole operation when it keeps a core from the rank that is waited for. The engine sees what pays, but not a quota.
    return Decision(_ADAPTIVE if cores >= topology.local_size else 0, here)


def _decide_overlap(setting: bool | None, topology: Topology, cores: int) -> Decision:
    if setting is not None:
        return Decision(int(setting), "environment")
    if topology.local_size < topology.size:
        return Decision(1, "the job spans hosts: the network transfers data while cores compute")
    here = f"{_format_count(cores, 'core')} for {_format_count(topology.local_size, 'rank')} on this host"
    # Otherwise the engine's thread takes from backward the core that it computes on.
    return Decision(int(cores >= 2 * topology.local_size), here)


def _decide_hierarchical(setting: bool | None) -> Decision:
    return Decision(_ADAPTIVE, "by size") if setting is None else Decision(int(setting), "environment")


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _read_quota() -> float:
    """Return how many cores' worth of time the control group may use; infinite when nothing limits it."""
    with suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1.0, int(limit) / int(period))  # "max" for no limit ends in the ValueError
    with suppress(OSError, ValueError):
        limit_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
        if limit_us > 0:
            return max(1.0, limit_us / period_us)
    return math.inf
