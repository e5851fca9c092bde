"""Faults at each system call of some work: a process is killed or interrupted there, or it fails, by ``strace``."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: All by which files and folders are made, filled, renamed and removed.
CALLS = ("openat", "mkdir", "write", "fsync", "rename", "renameat2", "unlink", "unlinkat", "rmdir", "flock")
KILL = "signal=KILL"
#: Ctrl-C.
INTERRUPT = "signal=INT"
#: A kernel, or a file system, that cannot exchange two names.
NO_EXCHANGE = ("-e", "inject=renameat2:error=EINVAL")
_MOST = 200


def at_each_call(
    work: Callable[[], Any], check: Callable[[str], None], fault: str, log: Path, *options: str, calls: Any = CALLS
) -> int:
    """Does the work in child processes, with the fault at each call in turn. Returns how often it was hit.

    Args:
        work: is done in a child process; may raise.
        check: called after each, with the call and its number.
        fault: as strace's ``-e inject`` has it: ``signal=KILL``, ``error=EIO``.
        log: a file for strace.
        options: more of strace's.
    """
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    hits = 0
    for call in calls:
        for number in range(1, _MOST):
            if not _with_fault(work, f"{call}:{fault}:when={number}", call, log, options):
                break
            hits += 1
            check(f"{fault} at {call} {number}")
    return hits


def _with_fault(work: Callable[[], Any], fault: str, call: str, log: Path, options: tuple[str, ...]) -> bool:
    """Whether the fault was met."""
    begin, let_begin = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            signal.alarm(60)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.read(begin, 1)
            work()
            status = 0
        os._exit(status)
    command = ["strace", "-f", "-p", str(child), "-o", str(log), "-e", f"trace={call}", *options]
    tracer = subprocess.Popen([*command, "-e", f"inject={fault}"], stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        assert select.select([tracer.stderr], [], [], 30)[0], "strace does not attach"
        line = tracer.stderr.readline()
        if "attached" not in line:
            pytest.skip(f"strace may not attach here: {line}")
        os.write(let_begin, b"\n")
        _, status = os.waitpid(child, 0)
        child = 0
        tracer.wait(30)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        tracer.kill()
        tracer.wait()
        os.close(begin)
        os.close(let_begin)
    text = log.read_text()
    return "INJECTED" in text or "--- SIGINT" in text or os.WIFSIGNALED(status)
