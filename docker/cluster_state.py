"""The state of the running cluster: a file with its processes and addresses, checked against /proc."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

# In the environment of each process of the cluster, and of all that these start; its value is the cluster's folder.
MARK = "SPARK_ESTIMATOR_CLUSTER"


class Condition(enum.Enum):
    """The condition of a cluster of plain processes.

    ABSENT -> RUNNING by `up`; RUNNING -> BROKEN when a daemon ends; any -> ABSENT by `down`, or when all have ended.
    """

    ABSENT = "no daemon runs"
    RUNNING = "all daemons run"
    BROKEN = "some daemons have ended"


@dataclass(frozen=True)
class Process:
    """A daemon that was started.

    Attributes:
        name: its role.
        pid: its process id.
        started: when it started, in clock ticks since the boot: with the pid, this identifies a process.
        log: the file that it logs to.
    """

    name: str
    pid: int
    started: int
    log: str

    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started


@dataclass
class State:
    """The contents of the state file.

    Attributes:
        variant: "processes" or "containers".
        engine: the container engine, "" for processes.
        processes: the daemons, in the order of their start; empty for containers.
        addresses: role -> address.
    """

    variant: str
    engine: str = ""
    processes: list[Process] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def condition(self) -> Condition:
        alive = [process.is_alive() for process in self.processes]
        if not any(alive):
            return Condition.ABSENT
        return Condition.RUNNING if all(alive) else Condition.BROKEN

    def write(self, path: Path) -> None:
        """Replaces the file as a whole, so that a reader never sees half of it."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)


def read(path: Path) -> State | None:
    """The state in a file; None when there is none, or when it is not one (of another version, or cut off)."""
    try:
        contents = json.loads(path.read_text())
        contents["processes"] = [Process(**process) for process in contents["processes"]]
        return State(**contents)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None when it has ended (a zombie has, too)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def marked(folder: Path) -> list[int]:
    """The pids of all processes that belong to the cluster of a folder, except this one."""
    entry = f"{MARK}={folder}".encode()
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry in (process / "environ").read_bytes().split(b"\0") and start_time(int(process.name)):
                    pids.append(int(process.name))
    return pids


def end(processes: Iterable[Process], seconds: float = 15) -> None:
    """Asks processes to end, waits for it, and kills those that have not ended after `seconds`."""
    processes = list(processes)
    for number, until in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in processes:
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + until
        while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
            _reap(processes)
            time.sleep(0.05)


def _reap(processes: Iterable[Process]) -> None:
    """Forgets those that are children of this process and have ended."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def kill_marked(folder: Path, seconds: float = 10) -> list[int]:
    """Kills all processes of a folder's cluster. Returns the pids of those that are alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while pids := marked(folder):
        if time.monotonic() > deadline:
            return pids
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return []
