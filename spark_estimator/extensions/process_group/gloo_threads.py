"""Lets gloo's threads finish collectives that have ended before Python ends, so that they do not abort the rank."""

from __future__ import annotations

import atexit
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

#: What PyTorch calls the threads of a gloo group.
_NAME = "pt_gloo_runloop"
_FIELDS = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_INTERVAL = timedelta(milliseconds=2)
#: The number of intervals without a change: a thread that has just been woken may not have run in one of them.
_QUIET_INTERVALS = 5
#: A thread that is busy for longer gets new collectives all the time: waiting would not prevent its abort. On a busy
#: machine a thread that has been woken waits for a processor for more than a second.
_LIMIT = timedelta(seconds=5)


def await_gloo_at_exit() -> None:
    """Make the end of the program wait for gloo's threads. Idempotent.

    A thread of gloo's drops a collective after the call has returned, and needs Python's global lock for that.
    Once Python has begun to finalize, a thread that asks for the lock is ended instead. That happens inside a C++
    destructor, and so ends the process: "terminate called without an active exception", with any launcher.
    """
    atexit.unregister(await_gloo)
    atexit.register(await_gloo)


def await_gloo() -> None:
    """Wait until gloo's threads are idle, at most five seconds."""
    end = time.monotonic() + _LIMIT.total_seconds()
    before = _read_threads()
    quiet = 0
    while before and quiet < _QUIET_INTERVALS and time.monotonic() < end:
        # Without the lock: a thread that waits for it runs now, and its switches are counted.
        time.sleep(_INTERVAL.total_seconds())
        after = _read_threads()
        quiet = quiet + 1 if after == before and all(state.startswith("S") for state, *_ in after) else 0
        before = after


def _read_threads() -> list[tuple[str, ...]]:
    """Return state and context switches of each thread of gloo's, as the kernel reports them.

    On a busy machine a thread that has just been created may not have run yet. It then still has the name of the
    thread that created it: in a process with groups, such threads of no Python thread count, too.
    """
    threads: list[tuple[str, ...]] = []
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    known = {_NAME}
    if dist.is_available() and dist.is_initialized():
        known |= {_read_name(number) for number in python_threads}
    for path in sorted(Path("/proc/self/task").glob("*/status")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:  # the thread has ended
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields.get("Name") in known and path.parent.name not in python_threads:
            threads.append(tuple(fields.get(name, "") for name in _FIELDS))
    return threads


def _read_name(number: str) -> str:
    try:
        return Path(f"/proc/self/task/{number}/comm").read_text(errors="replace").strip()
    except OSError:  # the thread has ended, or there is no /proc
        return _NAME
