"""Counts the processes that the launcher runs on this host, because one that has ended can never join.

mpirun, srun and torchrun start their processes on a host together, as children of one process there: mpirun itself or
its daemon, ``slurmstepd``, torchrun's agent. If that process has fewer children than ranks on this host, a rank is
missing, and waiting for it is useless. Processes that were started by hand, by variables, have no common parent.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from spark_estimator.collectives.other_launchers.launchers import ForeignJob
from spark_estimator.errors import PeerLostError

# The launcher may still be about to start some of them.
_CERTAIN_SECONDS = 2.0
# How the names of such processes begin. Others, such as a container's, may have one rank among their children only.
# PyTorch gives its agent's process the name pt_elastic.
_NAMES = (
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prte",
    "hydra_",
    "pmi_proxy",
    "accelerate",
    "python",
    "torchrun",
    "pt_elastic",
)
# It runs as root, so that the user can't read its environment.
_SLURM = "slurmstepd"


class LocalProcesses:
    """The processes of a job on this host, as children of the launcher's process; `job`: this process's job."""

    def __init__(self, job: ForeignJob) -> None:
        self._job = job
        self._launcher = _find_launcher(job) if job.has_parent and (job.local_size or 0) > 1 else None
        self._most = 0
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise PeerLostError if for two seconds fewer processes than ranks have been on this host."""
        if self._launcher is None:
            return
        children = _list_children(self._launcher, self._job)
        if children is None or len(children) >= (self._job.local_size or 0) or len(children) > self._most:
            self._most = 0 if children is None else len(children)
            self._since = time.monotonic()
        elif time.monotonic() - self._since > _CERTAIN_SECONDS:
            raise PeerLostError(
                f"init(): {self._job.launcher} runs only {len(children)} of the {self._job.local_size} processes on "
                f"host {socket.gethostname()} that its variables name{self._describe_missing(children)}. Either the "
                f"others ended before init(): look at their output. Or {self._job.variable}={self._job.size} is not "
                "the number of processes."
            )

    def _describe_missing(self, children: dict[int, int | None]) -> str:
        ranks = set(children.values())
        if None in ranks or self._job.local_size != self._job.size:
            return ""
        missing = sorted(set(range(self._job.size)) - {rank for rank in ranks if rank is not None})
        return f": rank {', '.join(map(str, missing))} is not among them"


def _find_launcher(job: ForeignJob) -> int | None:
    """Return the process that started this one as a rank: the first above it without the rank's variables."""
    pid = os.getpid()
    if _read_rank(pid, job) != job.rank:
        return None  # the launcher set the variables after the process had started, or the title has replaced them
    while (status := _read_status(pid)) is not None:
        pid = status[2]
        if pid < 1:
            return None
        status, environ = _read_status(pid), _read_environ(pid)
        name = "" if status is None else status[0]
        if name == _SLURM:
            return pid
        if environ is None:
            return None
        if _read_rank(pid, job) is None:
            return pid if name.startswith(_NAMES) else None
    return None


def _list_children(launcher: int, job: ForeignJob) -> dict[int, int | None] | None:
    """Return the launcher's children that may be ranks, each with its rank if readable; None if it has ended."""
    if _read_status(launcher) is None:
        return None
    children: dict[int, int | None] = {}
    for name in os.listdir("/proc"):
        status = _read_status(int(name)) if name.isdigit() else None
        if status is None or status[2] != launcher or status[1] in "ZX":
            continue
        rank, environ = _read_rank(int(name), job), _read_environ(int(name))
        # A process with a complete environment but no rank is not a rank, such as mpirun's ssh.
        if rank is not None or environ is None or not any(entry.startswith(b"PATH=") for entry in environ):
            children[int(name)] = rank
    return children


def _read_status(pid: int) -> tuple[str, str, int] | None:
    """Return a process's name, state and parent; None if it does not exist."""
    with suppress(OSError, ValueError, IndexError):
        name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return name, fields.split()[0], int(fields.split()[1])
    return None


def _read_environ(pid: int) -> list[bytes] | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return None


def _read_rank(pid: int, job: ForeignJob) -> int | None:
    for entry in _read_environ(pid) or ():
        name, _, value = entry.partition(b"=")
        if name == job.rank_variable.encode():
            with suppress(ValueError):
                return int(value)
    return None
