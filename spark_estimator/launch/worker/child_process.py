"""Reads the operating system's facts on a child process: a stop, its end, its exit status, and its peak of memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from spark_estimator.posix import SIGKILL, SIGNALS, libc, resource

#: The exit status of a child that other code in this program has reaped; no real status has this value.
UNKNOWN = 1 << 16
#: How often a `FrozenWatch` looks.
FROZEN_INTERVAL = timedelta(seconds=1)

# prctl(2)
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
# Memory is short when less than this part of it is left.
_SHORT_MEMORY = 0.1


class Child(Protocol):
    """A child of this process, such as a `subprocess.Popen`; `returncode`: None until it is reaped."""

    @property
    def pid(self) -> int: ...

    returncode: int | None


@dataclass
class AdoptedChild:
    """A child that another process has started."""

    pid: int
    returncode: int | None = None


def keep_standard_descriptors() -> None:
    """Open /dev/null for closed ones of the descriptors 0, 1 and 2, which pipes and sockets would get otherwise."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def open_exit_descriptor(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 where the system has none."""
    opener = getattr(os, "pidfd_open", None)
    try:
        return int(opener(pid)) if opener else -1
    except OSError:
        return -1


def has_ended(pid: int) -> bool:
    """Return whether a child of this process has ended. It is not reaped, so no other process can get its number."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # see `reap`; a child that the program itself has reaped has ended
        return True


def list_thread_names(pid: int) -> list[str]:
    """Return the operating system's names of a process's threads, each once; none where there is no /proc."""
    names = set()
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.add(path.read_text(encoding="utf-8", errors="replace").strip())
    return sorted(names)


class FrozenWatch:
    """Detects a process that is stopped by a signal for longer than `limit`; zero: none is."""

    def __init__(self, limit: timedelta) -> None:
        self.limit = limit
        self._looked = 0.0
        self._stopped_since: float | None = None

    def is_frozen(self, pid: int) -> bool:
        """Whether the process has been stopped each time for the limit. Call it every `FROZEN_INTERVAL`."""
        return bool(self.limit) and self.stopped_for(pid) >= self.limit

    def stopped_for(self, pid: int) -> timedelta:
        """How long the process has been found stopped, each time; zero if it runs, or has not been found so before."""
        now = time.monotonic()
        # If this process has not checked for long, it was stopped, too: then the time does not count.
        paused = now - self._looked > 3 * FROZEN_INTERVAL.total_seconds()
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


def signal_group(child: Child, number: int) -> None:
    """Send a signal to all processes of the group that `child` leads, unless it has been reaped."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def reap(child: Child) -> tuple[int, int]:
    """Wait for a child. Return its exit status (negative: a signal) and the peak of its memory in bytes.

    A process inherits the peak of its parent: only the memory above `MemoryBaseline.peak_bytes` is the child's. A
    program that ignores SIGCHLD, or waits for all children itself, gets no values: `UNKNOWN`, 0.
    """
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except ChildProcessError:
        child.returncode = UNKNOWN
        return UNKNOWN, 0
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, _to_bytes(usage)


class MemoryBaseline(NamedTuple):
    """The memory before a child's start, with which its peak at the end is compared.

    Attributes:
        peak_bytes: the most memory that this process has taken so far.
        oom_kills: as `count_oom_kills`.
    """

    peak_bytes: int
    oom_kills: int

    @classmethod
    def take(cls) -> MemoryBaseline:
        """Return the present one."""
        return cls(_to_bytes(resource.getrusage(resource.RUSAGE_SELF)), count_oom_kills())


def _to_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def count_oom_kills() -> int:
    """Return how often the kernel has killed a process of this control group for lack of memory; 0 if not counted."""
    for path in (*_find_memory_counters(), "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(path).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


@contextlib.contextmanager
def adopt_orphans() -> Iterator[None]:
    """Have this process adopt descendants whose parent ends meanwhile. Raises OSError: this system can't."""
    before = ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)) or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise OSError(ctypes.get_errno(), "a process can't adopt others")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def is_memory_short() -> bool:
    """Return whether the host, or this process's control group, has little memory left; False if that is not known."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        amounts = _read_amounts(Path("/proc/meminfo"), ":")
        if amounts["MemAvailable"] < _SHORT_MEMORY * amounts["MemTotal"]:
            return True
    for path in (*_find_memory_counters(), "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            folder = Path(path).parent
            limit = int((folder / "memory.max").read_text())  # "max" is no number
            # The kernel drops pages of files before it ends a process.
            files = _read_amounts(folder / "memory.stat")["inactive_file"]
            if limit - int((folder / "memory.current").read_text()) + files < _SHORT_MEMORY * limit:
                return True
    return False


def _read_amounts(path: Path, end: str = "") -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {fields[0].removesuffix(end): int(fields[1]) for fields in lines}


def _find_memory_counters() -> Iterator[str]:
    """Yield the files that count for this process's group. A container sees its own group as the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield f"/sys/fs/cgroup{group}/memory.events"
            elif "memory" in controllers.split(","):
                yield f"/sys/fs/cgroup/memory{group}/memory.oom_control"


def describe_end(exit_code: int) -> str:
    """Return an exit status in words."""
    if exit_code == UNKNOWN:
        return "an unknown status, because this program ignores SIGCHLD or reaps all of its child processes itself"
    if exit_code >= 0:
        return f"exit status {exit_code}"
    return f"signal {-exit_code}" + (f" ({SIGNALS[-exit_code]})" if -exit_code in SIGNALS else "")


def describe_kill(exit_code: int, peak_bytes: int, before: MemoryBaseline) -> str:
    """Describe a signal that ended a child: "was killed by ...", and for SIGKILL its memory, if known."""
    text = f"was killed by {describe_end(exit_code)}"
    if exit_code != -SIGKILL:
        return text
    if peak_bytes > before.peak_bytes:
        text += f", after its memory peaked at {peak_bytes / (1 << 20):.0f} MiB"
    if count_oom_kills() > before.oom_kills:
        return text + "; the kernel's out-of-memory killer was active: the job needs more memory, or must use less"
    return text + "; unless someone killed it, its host was out of memory (see dmesg, or the container's events)"
