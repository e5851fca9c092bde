"""Ends processes that a worker has started and that have left its process group, by a mark in their environment.

A process inherits the environment of the one that starts it, also in another session or group and with another parent.
So each worker gets a unique mark there, `PROCESS_VARIABLE`; Linux shows it in ``/proc``. A process that shall outlive
the rank is started without the variable.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from spark_estimator.env import PROCESS_VARIABLE
from spark_estimator.launch.worker import child_process

_PROC = Path("/proc")
# How long a process that is becoming another program is waited for.
_LONGEST = timedelta(seconds=1)
_live_marks: set[str] = set()


def mark(environment: MutableMapping[str, str]) -> str:
    """Put a new mark into a worker's environment, behind those of jobs that this one runs in; return it."""
    new = secrets.token_hex(8)
    environment[PROCESS_VARIABLE] = f"{environment.get(PROCESS_VARIABLE, '')}/{new}"
    _live_marks.add(new)
    return new


def end_marked(*marks: str) -> None:
    """Kill every process of this user that has one of the marks. Where there is no ``/proc``, nothing is found."""
    encoded_marks = [mark.encode() for mark in marks if mark]
    deadline = time.monotonic() + _LONGEST.total_seconds()
    killed: set[int] = set()
    while encoded_marks:
        mark_of = {pid: _read_marks(pid) for pid in _list_processes() if pid not in killed}
        alive = [pid for pid, value in mark_of.items() if value and any(mark in value for mark in encoded_marks)]
        for pid in alive:
            _kill(pid, encoded_marks)
        killed.update(alive)
        # Once more, as those that have been killed may just have started others.
        if not alive:
            if None not in mark_of.values() or time.monotonic() >= deadline:
                break
            time.sleep(0.001)
    # Only now: after a signal, `end_orphans_on_signal` may have to end the remaining processes.
    _live_marks.difference_update(marks)


@contextmanager
def end_orphans_on_signal() -> Iterator[None]:
    """Have SIGHUP and SIGTERM, where they would end this process, first end all that has a mark. In the main thread.

    PySpark's daemon sends these signals to the tasks of a lost executor. A worker ends with its parent, together
    with its process group, but processes that have left the group do not end; and if the worker has just ended on
    its own, nothing ends them.
    """

    def end_all(number: int, frame: object) -> None:
        for caught_signal in caught:  # PySpark's daemon sends it twice
            signal.signal(caught_signal, signal.SIG_IGN)
        end_marked(*_live_marks)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    caught: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        caught = [number for number in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end_all)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _list_processes() -> list[int]:
    with suppress(OSError):
        return [int(entry) for entry in os.listdir(_PROC) if entry.isdecimal() and int(entry) != os.getpid()]
    return []


def _kill(pid: int, encoded_marks: list[bytes]) -> None:
    """Kill the process if it still has such a mark: another may have got the number of one that has ended."""
    # From here on the signal reaches the process that has the number now, or none.
    descriptor = child_process.open_exit_descriptor(pid)
    try:
        value = _read_marks(pid)
        if value and any(mark in value for mark in encoded_marks):
            with suppress(OSError):
                if descriptor >= 0:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _read_marks(pid: int) -> bytes | None:
    """Return a process's value of `PROCESS_VARIABLE`; b"" where it has none, has ended, or is another user's.

    None while it becomes another program: in the midst of ``execve`` the new environment is not there yet. It may
    not be for a moment after `subprocess.Popen` has returned.
    """
    with suppress(OSError):
        folder = _PROC / str(pid)
        variables = (folder / "environ").read_bytes()
        for variable in variables.split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == PROCESS_VARIABLE.encode():
                return value
        if not variables and not _has_empty_environment(folder):
            return None
    return b""


def _has_empty_environment(folder: Path) -> bool:
    """Return whether that is certain. Raises OSError where there is no program: kernel threads, ended processes."""
    os.readlink(folder / "exe")
    # Counted from the state, as the name before it, in brackets, may have spaces: start_code, env_start and env_end of
    # proc(5). In the midst of execve the last two are alike for a moment as well; start_code is set after them.
    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[23] != b"0" and fields[47] == fields[48]
