"""Whether this process has file descriptors left for what it is about to connect, asked before a peer waits for it."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

# The engine's own (three), and some for what it may open at its start: a timeline, a log.
_OF_AN_ENGINE = 8
_OF_A_PEER = 3  # two connections, and its segment


def needed(ranks: int) -> int:
    """File descriptors that one rank of a group of `ranks` needs for it: also one for its own segment."""
    return _OF_A_PEER * (ranks - 1) + 1 + _OF_AN_ENGINE


def are_used_up(error: BaseException) -> bool:
    """Whether `error` is EMFILE or ENFILE: this process, or its host, has no file descriptor left."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def shortage(count: int) -> str:
    """Why `count` file descriptors cannot be opened, as the end of a sentence; '' where they can."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        # Whatever else is wrong, an empty sandbox without /dev/null for one, is not about descriptors.
        return shortage_text(count, len(opened)) if are_used_up(error) else ""
    finally:
        for descriptor in opened:
            with suppress(OSError):
                os.close(descriptor)
    return ""


def shortage_text(count: int, available: int) -> str:
    """That `count` file descriptors are needed and `available` are left, and what to do about it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process has too few file descriptors (EMFILE): {available} are left of its limit of {limit} (ulimit "
        f"-n), and {count} are needed. Raise the limit where the job is started, or close files, sockets and data "
        "loaders first."
    )
