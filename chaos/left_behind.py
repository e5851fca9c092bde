"""What a job has left behind: processes, files, descriptors, threads, listening ports, shared memory."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from spark_estimator.store.replacement import discard_leftovers

#: How long it may take until killed processes are reaped, and stopped threads have ended.
_PATIENCE_SECONDS = 3.0
# What the runner itself puts into a run's folder, and what a rank, or PyTorch, may leave there on purpose.
_EXPECTED_FILES = ("fired.", "due.", "output", "run.json", "checkpoint", "result.", "unmissed", "torchinductor_")


@dataclass(frozen=True)
class Before:
    """This process before a run.

    Attributes:
        descriptors: what its open descriptors refer to, without the numbers.
        threads: the names of its threads.
        segments: the names in /dev/shm.
    """

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    segments: frozenset[str]

    @classmethod
    def take(cls) -> Before:
        """Of now."""
        return cls(
            tuple(sorted(_descriptors())),
            tuple(thread.name for thread in threading.enumerate()),
            frozenset(os.listdir("/dev/shm")),
        )


def left_behind(before: Before, mark: str, folder: Path, *, count_descriptors: bool) -> list[str]:
    """What still exists after a few seconds.

    Args:
        mark: in the environment of the run's processes.
        count_descriptors: False for a run that has started a Spark session in this process.
    """
    # Files of a killed writer beside its target are removed by the next writer.
    discard_leftovers(str(folder))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (things := _left(before, mark, folder, count_descriptors)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return things


def _left(before: Before, mark: str, folder: Path, count_descriptors: bool) -> list[str]:
    things = [f"process {pid}: {command}" for pid, command in processes_with(mark).items()]
    things += [f"file {path.name}" for path in folder.iterdir() if not path.name.startswith(_EXPECTED_FILES)]
    if count_descriptors:
        now = Before.take()
        things += [f"descriptor {name}" for name in _more(before.descriptors, now.descriptors)]
        things += [f"thread {name}" for name in _more(before.threads, now.threads)]
        things += [f"/dev/shm/{name}" for name in now.segments - before.segments if "spark_estimator" in name]
    return things


def processes_with(mark: str) -> dict[int, str]:
    """pid -> command line of all processes whose environment has the mark, this one left out."""
    commands = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:  # it has ended
            continue
    return commands


def _descriptors() -> list[str]:
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
        kind = target.split(":")[0]
        # An inode does not help a reader, and the listing itself has a descriptor.
        if not target.endswith("/fd"):
            kinds.append(f"{kind} {_listening(target)}".strip())
    return kinds


def _listening(target: str) -> str:
    if not target.startswith("socket:["):
        return ""
    inode = target[8:-1]
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] == inode and fields[3] == "0A":
                return f"listening at port {int(fields[1].rpartition(':')[2], 16)}"
    return ""


def _more(before: tuple[str, ...], now: tuple[str, ...]) -> list[str]:
    remaining = list(before)
    added = []
    for name in now:
        if name in remaining:
            remaining.remove(name)
        else:
            added.append(name)
    return added
