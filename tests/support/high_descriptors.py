"""File descriptors that ``select.select`` does not take: 1024 and above, as a launcher of many ranks has them."""

from __future__ import annotations

import fcntl
import resource

import pytest

FIRST = 1024  # FD_SETSIZE


def high_descriptor(descriptor: int) -> int:
    """A copy of a file descriptor that is 1024 or above; the caller closes both. Skips where the limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FIRST + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this process may have {hard} file descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST)
