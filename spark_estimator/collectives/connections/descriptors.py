"""Checks that this process has file descriptors and threads left for the job, before a peer waits for it."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress

from spark_estimator.posix import resource

# The engine's own (three), and some for what it may open at its start: a timeline, a log.
_OF_AN_ENGINE = 8
_OF_A_PEER = 3  # two connections, and its segment
_THREADS = 4  # the engine's, who answers peers, who shows stacks, and the timeline's


def count_for_ranks(ranks: int) -> int:
    """Return how many file descriptors one rank of a group of `ranks` needs for it: also one for its own segment."""
    return count_for_peers(_OF_A_PEER * (ranks - 1))


def count_for_peers(count: int) -> int:
    """Return how many file descriptors an engine needs with `count` for its peers: also one for its own segment."""
    return count + 1 + _OF_AN_ENGINE


def are_used_up(error: BaseException) -> bool:
    """Return whether `error` is EMFILE or ENFILE: this process, or its host, has no file descriptor left."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def find_shortage(count: int) -> str:
    """Return why `count` file descriptors cannot be opened, as the end of a sentence; '' where they can."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        # Any other error, such as a sandbox without /dev/null, is not about descriptors.
        return describe_shortage(count, len(opened)) if are_used_up(error) else ""
    finally:
        for descriptor in opened:
            with suppress(OSError):
                os.close(descriptor)
    return ""


def describe_shortage(count: int, available: int) -> str:
    """Describe that `count` file descriptors are needed and `available` are left, and what to do about it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process has too few file descriptors (EMFILE): {available} are left of its limit of {limit} (ulimit "
        f"-n), and {count} are needed. Raise the limit where the job is started, or close files, sockets and data "
        "loaders first."
    )


def find_thread_shortage() -> str:
    """Return why the threads of a rank cannot be started, as the end of a sentence; '' where they can."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=over.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # the interpreter's only way to report EAGAIN
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        allowed = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit}"
        return (
            f"this process can start {len(started)} more threads, and {_THREADS} are needed ({error}). Its user has "
            f"{allowed} (ulimit -u); its container may have another (pids.max). Raise it, or use fewer ranks per host "
            "and fewer threads in each: SPARK_ESTIMATOR_WORKER_THREADS."
        )
    finally:
        over.set()
        for thread in started:
            thread.join()
    return ""
