"""Locks by which the ranks on a host notice that two processes have the same rank of the same job.

A process locks the byte of its rank in one file of the user's folder, from ``init()`` until it ends. The kernel
releases the lock, so a process that was killed leaves none behind. Ranks in containers that do not share the folder
do not see each other's locks.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress

from spark_estimator.posix import fcntl

_FILE = "ranks.lock"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Linux' struct flock: type, whence, start, length, process.
_FLOCK = struct.Struct("@hhqqi")


class RankLocks:
    """The ranks of a job, by its `identity`, that processes on this host have; without a folder nothing is locked."""

    def __init__(self, folder: str | None, identity: str) -> None:
        self._identity = identity
        self._descriptor = -1
        if folder is not None:
            with suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_LINK
                self._descriptor = os.open(os.path.join(folder, _FILE), flags, 0o600)

    def acquire(self, rank: int) -> bool:
        """Locks a rank until this process ends, or `release`; False if another process has locked it."""
        if self._descriptor >= 0:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._find_byte(rank))
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                self.release()  # a file system without locks
        return True

    def find_holder(self, rank: int) -> int:
        """Return the number of the other process that has locked a rank; 0 if there is none."""
        if self._descriptor >= 0:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._find_byte(rank), 1, 0)
            with suppress(OSError):
                kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question))
                return 0 if kind == fcntl.F_UNLCK else int(process)
        return 0

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _find_byte(self, rank: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._identity} rank {rank}".encode()).digest()[:7], "big")
