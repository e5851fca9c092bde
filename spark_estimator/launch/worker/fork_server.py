"""The program of a process that imports what a job's ranks need, and then forks a worker for each request.

A worker that it forks has a fresh interpreter: the server has imported modules, and run nothing else. So a job sees
nothing of another one, and the second job of a session imports nothing. The supervisor stays the parent of each worker,
as it is the nearest ancestor that adopts orphans (PR_SET_CHILD_SUBREAPER, prctl(2)) while the server forks twice.

A request is one message with descriptors, an answer one message, both JSON: `ForkRequest`, and {"pid": 1} or
{"refused": why}. Before the first one the server sends {} when it has imported the modules. A list of modules is
imported as well, without an answer. Nothing secret passes through the server: the worker reads its spec from the pipe
that it is given.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator.env import JOB_VARIABLE, PROCESS_VARIABLE
from spark_estimator.launch.worker import worker
from spark_estimator.posix import fcntl

#: The longest message, and the most descriptors of one.
MESSAGE_BYTES = 1 << 16
MESSAGE_DESCRIPTORS = 64
# Each worker needs them once its spec is there.
_OWN_MODULES = (
    "cloudpickle",
    "spark_estimator.collectives.preemption",
    "spark_estimator.compat.importer",
    "spark_estimator.observe.driver_log",
    "spark_estimator.observe.training_records",
)
# How long a worker waits to be adopted by the supervisor.
_ADOPTION = timedelta(seconds=10)


@dataclass(frozen=True)
class ForkRequest:
    """What the server forks.

    Attributes:
        parent: the supervisor's process.
        result_fd: where the worker writes its frames.
        numbers: [descriptors of the message] the number that each has in the worker.
        variables: of the worker's environment, beyond the server's. `JOB_VARIABLE` and `PROCESS_VARIABLE` are among
            them, and as long as the server's.
    """

    parent: int
    result_fd: int
    numbers: tuple[int, ...]
    variables: Mapping[str, str]

    def to_json(self) -> bytes:
        """Return the message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, message: bytes) -> ForkRequest:
        """Make the request from what `to_json` returned."""
        fields: dict[str, Any] = json.loads(message)
        return cls(**{**fields, "numbers": tuple(fields["numbers"])})


class ForkRefusedError(Exception):
    """The server can't fork this worker, for the reason in the text."""


class EnvironmentBlock:
    """The variables that this process was started with, as ``/proc/PID/environ`` shows them; a fork inherits them.

    Raises:
        ForkRefusedError: the block can't be found.
    """

    def __init__(self) -> None:
        try:
            # env_start and env_end of proc(5), counted from the state.
            fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
            self._start, end = int(fields[47]), int(fields[48])
        except (OSError, IndexError, ValueError) as error:
            raise ForkRefusedError(f"this system doesn't show a process's environment: {error}") from error
        self._bytes = ctypes.string_at(self._start, end - self._start) if end > self._start > 0 else b""
        for name in (JOB_VARIABLE, PROCESS_VARIABLE):
            self._find(name)

    def _find(self, name: str) -> tuple[int, int]:
        """Return where the value of a variable begins, and its length."""
        head = b"\0" + name.encode() + b"="
        at = (b"\0" + self._bytes).find(head)
        if at < 0:
            raise ForkRefusedError(f"{name} is not in the environment that the server was started with")
        begin = at + len(head) - 1
        return begin, self._bytes.index(b"\0", begin) - begin

    def replace(self, name: str, value: str) -> None:
        """Replace a variable's value by one of the same length."""
        begin, length = self._find(name)
        encoded = value.encode()
        if len(encoded) != length:
            raise ForkRefusedError(f"{name} has {len(encoded)} bytes; the server's has {length}")
        ctypes.memmove(self._start + begin, encoded, length)


def main() -> None:
    """Run the server; ``warm_start`` starts it. In the workers that it forks, the call runs the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--preload", default="")
    options = parser.parse_args()
    worker.bind_to_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a supervisor that ignores it would have the server ignore it, too
    os.set_inheritable(options.control_fd, False)
    control = socket.socket(fileno=options.control_fd)
    worker.preload([*_OWN_MODULES, *filter(None, options.preload.split(","))])
    request = serve(control)
    if request is not None:
        worker.work(worker.prepare_process(request.parent, request.result_fd))


def serve(control: socket.socket) -> ForkRequest | None:
    """Answer requests until the supervisor closes its end; then, None. In a worker: return its request."""
    control.send(b"{}")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MESSAGE_DESCRIPTORS)
        if not message:
            return None
        if message.startswith(b"["):
            worker.preload(json.loads(message))
            continue
        answer: dict[str, Any]
        try:
            request = ForkRequest.from_json(message)
            check_fork(request, descriptors, control)
            block = EnvironmentBlock()
            pid = fork_twice()
            if pid == 0:
                control.close()
                become_worker(request, descriptors, block)
                return request
            answer = {"pid": pid}
        except (ForkRefusedError, OSError) as error:
            answer = {"refused": str(error)}
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())


def check_fork(request: ForkRequest, descriptors: Sequence[int], control: socket.socket) -> None:
    """Raise ForkRefusedError where a fork would not be the same as a new process."""
    if len(descriptors) != len(request.numbers):
        raise ForkRefusedError(f"{len(descriptors)} of {len(request.numbers)} descriptors arrived")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        raise ForkRefusedError(f"a module that was imported has started threads: {', '.join(others)}")
    expected = {0, 1, 2, control.fileno(), *descriptors}
    others_open = {int(name) for name in os.listdir("/proc/self/fd")} - expected
    conflicts = {number for number in others_open & set(request.numbers) if _is_open(number)}
    if conflicts:
        raise ForkRefusedError(f"a module that was imported holds the descriptors {sorted(conflicts)}")


def _is_open(descriptor: int) -> bool:
    """Return whether it is: the one that listed the folder is not any more."""
    with suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


def fork_twice() -> int:
    """Fork a process in a new session, whose parent ends at once. Return its number; 0 in that process."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        with suppress(OSError):
            if os.fork() == 0:
                os.setsid()  # before its number is known: who knows it signals the group
                os.write(write, str(os.getpid()).encode())
                os.close(read)
                os.close(write)
                return 0
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        number = pipe.read()
    os.waitpid(first, 0)
    if not number:
        raise ForkRefusedError("the system has no room for another process")
    return int(number)


def become_worker(request: ForkRequest, descriptors: Sequence[int], block: EnvironmentBlock) -> None:
    """Make this fork what the supervisor would have started: descriptors, environment, random states."""
    place_descriptors(descriptors, request.numbers)
    for name in (JOB_VARIABLE, PROCESS_VARIABLE):
        block.replace(name, request.variables[name])
    os.environ.update(request.variables)
    renew_random_states()
    deadline = time.monotonic() + _ADOPTION.total_seconds()
    while os.getppid() != request.parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0002)


def place_descriptors(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each descriptor its number; the old ones are closed. Others with such a number, too."""
    first_free = max([*descriptors, *numbers]) + 1
    lifted = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first_free) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(lifted, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)


def renew_random_states() -> None:
    """Draw new states where an import has drawn one: all forks would have the same. `random` does it by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
