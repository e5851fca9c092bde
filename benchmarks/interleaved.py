"""Measures several libraries in interleaved blocks: a library runs a block of ops while the ranks of the others sleep.

A *group* is the ranks of one library (or of one configuration of it), each a process that answers commands on a Unix
socket; the header comment of ``native/benchmarks/measured_rank.h`` documents the protocol. A *subject* is one column of
the result: a group and one of its variants. A temporary load of the machine affects all subjects alike, and the median
over blocks removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType

OPS = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")

# A sample of small ops has as many ops as fit into this much memory, up to the maximum below.
_BATCH_BYTES = 256 << 10
_LARGEST_BATCH = 32
_LARGEST_SAMPLES = 500
_START_TIMEOUT = timedelta(seconds=90)
_BLOCK_TIMEOUT = timedelta(seconds=120)
_EXIT_TIMEOUT = timedelta(seconds=2)


class BenchmarkError(Exception):
    """A library did not start, returned a wrong result, failed, or did not answer. The message names the reason."""


@dataclass(frozen=True)
class Form:
    """An op with a data type and a size.

    Attributes:
        op: one of `OPS`.
        dtype: one of `DTYPES`.
        bytes: size of each rank's input; 0 for a barrier.
    """

    op: str
    dtype: str
    bytes: int

    @property
    def batch(self) -> int:
        """Number of ops in one sample; each has its own buffers."""
        if self.op == "barrier":
            return _LARGEST_BATCH
        return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // max(1, self.bytes)))


@dataclass(frozen=True)
class Command:
    """How to start a process of a group.

    Attributes:
        arguments: the command.
        environment: variables in addition to this process's.
        descriptors: file descriptors that the process inherits.
        within: context in which the process is started, for instance another network namespace.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    descriptors: Sequence[int] = ()
    within: AbstractContextManager[object] | None = None


class Group:
    """The ranks of one library. A context manager, which ends all its processes at exit.

    Args:
        name: for messages.
        size: number of ranks that will connect.
        commands: returns the commands to start for the path of the socket: one, such as ``mpirun``, or one per rank.

    Raises:
        BenchmarkError: not all ranks connected in time; the message contains the output of the processes.
    """

    def __init__(self, name: str, size: int, commands: Callable[[str], Sequence[Command]]) -> None:
        self.name = name
        self.size = size
        self._folder = Path(tempfile.mkdtemp(prefix="interleaved"))
        self._output = self._folder / "output.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: dict[int, socket.socket] = {}
        try:
            path = str(self._folder / "ranks")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                listener.listen(size)
                for command in commands(path):
                    self._start(command)
                self._accept(listener)
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, timeout: timedelta = _BLOCK_TIMEOUT) -> list[str]:
        """Sends one command to all ranks and returns their answers, in rank order.

        Raises:
            BenchmarkError: a rank ended or did not answer within `timeout`.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        for rank in range(self.size):
            try:
                self._sockets[rank].sendall(f"{command}\n".encode())
            except OSError as error:
                raise self._error(f"sending {command!r} to rank {rank} failed: {error}") from error
        return [self._line(self._sockets[rank], rank, command, deadline) for rank in range(self.size)]

    def close(self) -> None:
        """Ends all processes and removes their files. Idempotent."""
        for sock in self._sockets.values():
            with contextlib.suppress(OSError):
                sock.sendall(b"quit\n")
            sock.close()
        deadline = time.monotonic() + (5.0 if self._sockets else 0.0)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            # Each process leads a process group, so its children end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._sockets.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, command: Command) -> None:
        with self._output.open("ab") as sink, command.within or contextlib.nullcontext():
            self._processes.append(
                subprocess.Popen(
                    list(command.arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(command.environment or {})},
                    pass_fds=tuple(command.descriptors),
                    start_new_session=True,
                )
            )

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + _START_TIMEOUT.total_seconds()
        listener.settimeout(0.2)
        while len(self._sockets) < self.size:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                for process in self._processes:
                    if process.poll() is not None:
                        raise self._error(f"a process ended with status {process.returncode} at its start") from None
                if time.monotonic() > deadline:
                    raise self._error(f"only {len(self._sockets)} of {self.size} ranks connected") from None
                continue
            words = self._line(sock, -1, "hello", deadline).split()
            if len(words) != 3 or words[0] != "rank" or words[2] != str(self.size) or int(words[1]) in self._sockets:
                sock.close()
                raise self._error(f"a process sent {' '.join(words)!r}; expected 'rank RANK {self.size}'")
            self._sockets[int(words[1])] = sock

    def _line(self, sock: socket.socket, rank: int, command: str, deadline: float) -> str:
        received = bytearray()
        while not received.endswith(b"\n"):
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                part = sock.recv(1 << 16)
            except TimeoutError:
                raise self._error(f"rank {rank} did not answer {command!r} in time") from None
            except OSError as error:
                raise self._error(f"rank {rank} was lost during {command!r}: {error}") from error
            if not part:
                self._await_exit()
                raise self._error(f"rank {rank} ended during {command!r}")
            received += part
        return received.decode().rstrip("\n")

    def _await_exit(self) -> None:
        """Waits briefly for a process to exit: it closes its connection before it writes the reason to its output."""
        deadline = time.monotonic() + _EXIT_TIMEOUT.total_seconds()
        while time.monotonic() < deadline and all(process.poll() is None for process in self._processes):
            time.sleep(0.01)

    def _error(self, problem: str) -> BenchmarkError:
        output = self._output.read_text(errors="replace")[-2000:] if self._output.exists() else ""
        return BenchmarkError(
            f"{self.name}: {problem}." + (f" Output of its processes:\n{output}" if output.strip() else "")
        )


@dataclass(frozen=True)
class Subject:
    """One column of the result.

    Attributes:
        name: title of the column.
        group: the ranks that run the op.
        variant: name of the implementation within the group.
    """

    name: str
    group: Group
    variant: str

    def check(self, form: Form) -> str | None:
        """Has the ranks run `form` and check every element. Returns the reason if it is unsupported, else None.

        Raises:
            BenchmarkError: an element is wrong, or the op failed.
        """
        answers = self.group.ask(f"check {self.variant} {form.op} {form.dtype} {form.bytes} {form.batch}")
        for rank, answer in enumerate(answers):
            word, _, rest = answer.partition(" ")
            if word == "unsupported":
                return rest
            if word != "ok":
                raise BenchmarkError(
                    f"{self.name}: {form.op} of {form.bytes} bytes of {form.dtype}: rank {rank}: {answer}"
                )
        return None

    def block(self, form: Form, samples: int) -> Block:
        """Measures `samples` samples. Raises BenchmarkError if the op fails."""
        answers = self.group.ask(f"block {self.variant} {form.op} {form.dtype} {form.bytes} {form.batch} {samples}")
        times = []
        for rank, answer in enumerate(answers):
            word, _, rest = answer.partition(" ")
            if word != "times":
                raise BenchmarkError(
                    f"{self.name}: {form.op} of {form.bytes} bytes of {form.dtype}: rank {rank}: {answer}"
                )
            times.append([float(text) for text in rest.split()])
        slowest = [max(sample) for sample in zip(*times, strict=True)]
        return Block(statistics.median(slowest) / 1e3, statistics.median(times[0]) / 1e3, samples)


@dataclass(frozen=True)
class Block:
    """Medians over the samples of a block, in microseconds per op.

    Attributes:
        slowest_us: of the slowest rank of each sample.
        rank0_us: of rank 0.
        samples: number of samples.
    """

    slowest_us: float
    rank0_us: float
    samples: int


@dataclass(frozen=True)
class Figure:
    """The time of one subject for one op, in microseconds.

    Attributes:
        us: time of the slowest rank: the median over blocks of the medians over samples.
        rank0_us: time of rank 0, likewise.
        low_us, high_us: quartiles over blocks of the slowest rank's time.
        blocks, samples: number of blocks and of samples.
    """

    us: float
    rank0_us: float
    low_us: float
    high_us: float
    blocks: int
    samples: int

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Figure:
        """Summarizes the blocks of one subject; there must be at least one."""
        slowest = sorted(block.slowest_us for block in blocks)
        low, high = (slowest[0], slowest[-1])
        if len(slowest) > 1:
            low, _, high = statistics.quantiles(slowest, n=4, method="inclusive")
        rank0 = statistics.median(block.rank0_us for block in blocks)
        samples = sum(block.samples for block in blocks)
        return cls(statistics.median(slowest), rank0, low, high, len(blocks), samples)

    @classmethod
    def computed(cls, us: float) -> Figure:
        """A time that is computed and not measured; it has no blocks."""
        return cls(us, us, us, us, 0, 0)


@dataclass(frozen=True)
class Line:
    """The times of all subjects for one op, and the reasons of those that do not support it."""

    form: Form
    figures: Mapping[str, Figure]
    refusals: Mapping[str, str]


def measure(
    form: Form, subjects: Sequence[Subject], seconds: float, *, block_seconds: float = 0.06, least_blocks: int = 3
) -> Line:
    """Checks the results of every subject, then measures the subjects in interleaved blocks.

    Args:
        form: the op to measure.
        subjects: the subjects to measure.
        seconds: total time of the blocks of each subject.
        block_seconds: approximate duration of a block, including the untimed writes and waits.
        least_blocks: minimum number of blocks.

    Raises:
        BenchmarkError: a result is wrong, or an op failed.
    """
    refusals = {subject.name: reason for subject in subjects if (reason := subject.check(form)) is not None}
    able = [subject for subject in subjects if subject.name not in refusals]
    samples = {}
    for subject in able:
        start = time.monotonic()
        subject.block(form, 1)
        # One timed sample and two untimed ones.
        samples[subject.name] = _fitting(min(block_seconds, seconds), (time.monotonic() - start) / 3)
    blocks: dict[str, list[Block]] = {subject.name: [] for subject in able}
    deadline = time.monotonic() + seconds * len(able)
    rounds = 0
    while able and (rounds < least_blocks or time.monotonic() < deadline):
        # Each round starts with another subject, so that the order does not favour any of them.
        for offset in range(len(able)):
            subject = able[(rounds + offset) % len(able)]
            blocks[subject.name].append(subject.block(form, samples[subject.name]))
        rounds += 1
    return Line(form, {name: Figure.of(measured) for name, measured in blocks.items()}, refusals)


def _fitting(block_seconds: float, sample_seconds: float) -> int:
    return max(1, min(_LARGEST_SAMPLES, round(block_seconds / max(1e-9, sample_seconds))))
