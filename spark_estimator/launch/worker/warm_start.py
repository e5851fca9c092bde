"""Starts workers from a process that has imported their modules already, and keeps it for the next job.

`fork_worker` forks one worker from the server of this process (``fork_server``), which it starts at the first job. The
server stays for a while after its last worker has ended. Another environment, folder, user limit or set of modules than
the server was started with needs another server, which replaces it: a process has one at most. Where a server can't do
it, the caller starts the worker as a new process.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator import posix
from spark_estimator.env import JOB_VARIABLE, PROCESS_VARIABLE
from spark_estimator.launch.worker import child_process
from spark_estimator.launch.worker.fork_server import MESSAGE_BYTES, ForkRefusedError, ForkRequest

# -c puts the current folder first on the path; a file of the user's there must not shadow a module that we need.
_PROGRAM = """import sys
sys.path[:1] == [''] and sys.path.pop(0)
from spark_estimator.launch.worker.fork_server import main
main()"""
# Importing a large framework from a network's file system takes that long.
_LONGEST_ANSWER = timedelta(minutes=2)
# What PyTorch imports when an optimizer is first used, for a second: not until then, as not every job uses one.
_TORCH_LATER = ("torch._dynamo",)
_LONGEST_END = timedelta(seconds=1)
_MEMORY_INTERVAL = timedelta(seconds=1)
# From /proc/thread-self/status: what a process inherits, beside its environment, folder and limits.
_INHERITED = (
    "Uid",
    "Gid",
    "Groups",
    "Umask",
    "SigBlk",
    "SigIgn",
    "CapEff",
    "Cpus_allowed",
    "Mems_allowed",
    "NoNewPrivs",
)


@dataclass(frozen=True)
class Preparation:
    """What a server was started with: it forks workers that would be started with the very same.

    Attributes:
        environment: (name, value) in order of names, without those in which workers differ.
        modules: imported by the server.
        surroundings: of the starting process: what else a new process would inherit, and the packages' folders.
    """

    environment: tuple[tuple[str, str], ...]
    modules: tuple[str, ...]
    surroundings: tuple[str, ...]

    @classmethod
    def take(cls, environment: Mapping[str, str], modules: Sequence[str]) -> Preparation:
        """Make that of a worker that this thread would start. Raises OSError: this system doesn't show it."""
        blank = {name: "0" * len(environment[name]) for name in (JOB_VARIABLE, PROCESS_VARIABLE)}
        status = Path("/proc/thread-self/status").read_text(errors="replace").splitlines()
        folder = os.stat(".")  # one that was removed and made again has the same path
        surroundings = [
            f"{os.getcwd()} {folder.st_dev} {folder.st_ino}",
            str(os.getpriority(os.PRIO_PROCESS, 0)),
            Path("/proc/self/limits").read_text(),
            Path("/proc/self/cgroup").read_text(),
            *(line for line in status if line.split(":")[0] in _INHERITED),
            *_describe_packages(),
        ]
        return cls(tuple(sorted({**environment, **blank}.items())), tuple(modules), tuple(surroundings))


def _describe_packages() -> Iterator[str]:
    """Yield the folders of installed packages, with the time of the last installation."""
    for entry in sys.path:
        if entry.endswith("-packages"):
            with suppress(OSError):
                yield f"{entry} {os.stat(entry).st_mtime_ns}"


class ForkServer:
    """One server, and the thread that starts and ends it: the kernel ends the server together with that thread.

    It ends by `end`, once no worker of it has run for the time that `release` was given, or when memory is short while
    none runs.
    """

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self._condition = threading.Condition()
        self._workers = 0
        self._idle_at = float("inf")
        self._ended = False
        self._ready = False
        self._later = _TORCH_LATER if any("torch" in name for name in preparation.modules) else ()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_LONGEST_ANSWER.total_seconds())
        self._keeper = threading.Thread(
            target=self._keep, args=(theirs,), name="spark_estimator fork server", daemon=True
        )
        self._keeper.start()

    def reserve(self) -> bool:
        """Keep the server for one more worker, until `release`. Return False if it has ended."""
        with self._condition:
            self._workers += not self._ended
            return not self._ended

    def fork(self, request: ForkRequest, descriptors: Sequence[int]) -> int:
        """Return the process of a new worker, a child of this process; for one thread at a time.

        Raises:
            ForkRefusedError: the server can't do it, or has not answered in time.
            OSError: the server has ended.
        """
        try:
            if not self._ready:  # until it has imported the modules
                self._ready = bool(self._control.recv(MESSAGE_BYTES))
            with child_process.adopt_orphans():
                socket.send_fds(self._control, [request.to_json()], descriptors)
                answer: dict[str, Any] = json.loads(self._control.recv(MESSAGE_BYTES) or b"{}")
        except TimeoutError as error:
            raise ForkRefusedError(f"the server has not answered for {_LONGEST_ANSWER}") from error
        if not answer:
            raise ConnectionResetError("the server has ended")
        if "refused" in answer:
            raise ForkRefusedError(answer["refused"])
        return int(answer["pid"])

    def release(self, idle: timedelta) -> None:
        """Note that a worker has ended, and how long the server then stays."""
        with self._condition:
            self._workers -= 1
            self._idle_at = time.monotonic() + idle.total_seconds()
            if not self._workers and self._later:
                with suppress(OSError):
                    self._control.send(json.dumps(self._later).encode())
                self._later = ()
            self._condition.notify()

    def end(self) -> None:
        """End the server; its workers stay. Idempotent."""
        with self._condition:
            self._ended = True
            self._condition.notify()

    def wait(self, limit: timedelta) -> None:
        """Wait until the process has ended."""
        self._keeper.join(limit.total_seconds())

    def _keep(self, theirs: socket.socket) -> None:
        """Start the server, and end it when it is no longer needed."""
        try:
            with theirs:
                command = [sys.executable, "-u", "-c", _PROGRAM]
                command += ["--parent", str(os.getpid()), "--control-fd", str(theirs.fileno())]
                if self.preparation.modules:
                    command += ["--preload", ",".join(self.preparation.modules)]
                server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(self.preparation.environment),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError:
            self._control.shutdown(socket.SHUT_RDWR)  # `fork` learns that there is none
            return
        with self._condition:
            while not self._ended and not self._is_idle():
                self._condition.wait(_MEMORY_INTERVAL.total_seconds())
            self._ended = True
        server.kill()
        server.wait()
        self._control.close()

    def _is_idle(self) -> bool:
        """Return whether no worker runs, and the time is over or memory is short. Shorten the wait for that time."""
        if self._workers:
            return False
        remaining = self._idle_at - time.monotonic()
        if 0 < remaining < _MEMORY_INTERVAL.total_seconds():
            self._condition.wait(remaining)
            return self._is_idle()
        return remaining <= 0 or child_process.is_memory_short()


_lock = threading.Lock()
_server: ForkServer | None = None
# What a server has refused: it would refuse it again.
_refused: set[Preparation] = set()


def fork_worker(
    environment: Mapping[str, str], modules: Sequence[str], request: ForkRequest, descriptors: Sequence[int]
) -> tuple[int, ForkServer] | None:
    """Fork a worker. Return its process, and the server, to be released at its end; None: there is none for it."""
    global _server
    if not sys.platform.startswith("linux"):
        return None
    try:
        preparation = Preparation.take(environment, modules)
    except OSError:
        return None
    with _lock:
        if preparation in _refused:
            return None
        if _server is None or _server.preparation != preparation or not _server.reserve():
            if _server is not None:
                _server.end()
            _server = ForkServer(preparation)
            _server.reserve()
        try:
            return _server.fork(request, descriptors), _server
        except ForkRefusedError:
            _refused.add(preparation)
        except OSError:
            pass  # the next job gets another server
        _server.end()
        return None


def _end_server() -> None:
    """End the server together with the program: the kernel would do so a moment later."""
    if _server is not None:
        _server.end()
        _server.wait(_LONGEST_END)


def _forget_server() -> None:
    """Leave the server to the process that has started it."""
    global _server, _lock
    _server, _lock = None, threading.Lock()


posix.register_at_fork(after_in_child=_forget_server)
atexit.register(_end_server)
