"""Measures several libraries in turns: a block of ops by one, a block by the next, and again, while all others sleep.

A *group* is the ranks of one library (or of one way to run it), each a process that answers commands on a Unix socket;
what is said on it stands at the head of ``native/benchmarks/measured_rank.h``. A *subject* is one column of the result:
a group and one of the variants that it offers. What disturbs the machine for a while meets all subjects alike, and the
median over blocks forgets it.
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

# Small ops are measured so many at a time that they touch about this much memory, and at most so many.
_BATCH_BYTES = 256 << 10
_LARGEST_BATCH = 32
_LARGEST_SAMPLES = 500
_START_TIMEOUT = timedelta(seconds=90)
_BLOCK_TIMEOUT = timedelta(seconds=120)
_LAST_WORDS = timedelta(seconds=2)


class BenchmarkError(Exception):
    """A library could not be started, gave wrong numbers, failed, or did not answer. The text says which and why."""


@dataclass(frozen=True)
class Form:
    """One op at one size.

    Attributes:
        op: of `OPS`.
        dtype: of `DTYPES`.
        bytes: size of each rank's input; 0 for a barrier.
    """

    op: str
    dtype: str
    bytes: int

    @property
    def batch(self) -> int:
        """How many ops make one sample, each on buffers of its own."""
        if self.op == "barrier":
            return _LARGEST_BATCH
        return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // max(1, self.bytes)))


@dataclass(frozen=True)
class Command:
    """How to start a process of a group: the command, its variables over this process's, descriptors it inherits.

    Attributes:
        within: entered around the start, for instance to be in another network namespace.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    descriptors: Sequence[int] = ()
    within: AbstractContextManager[object] | None = None


class Group:
    """The ranks of one library. A context manager; on leaving it none of its processes is left alive.

    Args:
        name: for messages.
        size: number of ranks that will connect.
        commands: given the path of the socket, what to start: one process, as ``mpirun``, or one for each rank.

    Raises:
        BenchmarkError: not all ranks connected in time; what the processes wrote is in the text.
    """

    def __init__(self, name: str, size: int, commands: Callable[[str], Sequence[Command]]) -> None:
        self.name = name
        self.size = size
        self._folder = Path(tempfile.mkdtemp(prefix="turns"))
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
        """Sends one command to all ranks and gives their answers, in rank order.

        Raises:
            BenchmarkError: a rank ended or did not answer within `timeout`.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        for rank in range(self.size):
            try:
                self._sockets[rank].sendall(f"{command}\n".encode())
            except OSError as error:
                raise self._error(f"rank {rank} cannot be asked for {command!r}: {error}") from error
        return [self._line(self._sockets[rank], rank, command, deadline) for rank in range(self.size)]

    def close(self) -> None:
        """Ends all processes and removes what they left. Idempotent."""
        for sock in self._sockets.values():
            with contextlib.suppress(OSError):
                sock.sendall(b"quit\n")
            sock.close()
        deadline = time.monotonic() + (5.0 if self._sockets else 0.0)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            # Each leads a process group, so mpirun's or a fork's children end with it.
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
                    raise self._error(f"only {len(self._sockets)} of {self.size} ranks came") from None
                continue
            words = self._line(sock, -1, "hello", deadline).split()
            if len(words) != 3 or words[0] != "rank" or words[2] != str(self.size) or int(words[1]) in self._sockets:
                sock.close()
                raise self._error(f"a process introduced itself by {' '.join(words)!r}; expected a rank of {self.size}")
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
                self._await_last_words()
                raise self._error(f"rank {rank} ended during {command!r}")
            received += part
        return received.decode().rstrip("\n")

    def _await_last_words(self) -> None:
        """A process closes its connection before it has written why it ends: gives it a moment to end."""
        deadline = time.monotonic() + _LAST_WORDS.total_seconds()
        while time.monotonic() < deadline and all(process.poll() is None for process in self._processes):
            time.sleep(0.01)

    def _error(self, what: str) -> BenchmarkError:
        written = self._output.read_text(errors="replace")[-2000:] if self._output.exists() else ""
        return BenchmarkError(
            f"{self.name}: {what}." + (f" Its processes wrote:\n{written}" if written.strip() else "")
        )


@dataclass(frozen=True)
class Subject:
    """One column of the result.

    Attributes:
        name: of the column.
        group: whose ranks do it.
        variant: the word by which the group knows this way to do it.
    """

    name: str
    group: Group
    variant: str

    def check(self, form: Form) -> str | None:
        """Lets the ranks run `form` and compare every element. Returns why it is not offered; None when all is well.

        Raises:
            BenchmarkError: a number is wrong, or the op failed.
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
        """Measures so many samples. Raises BenchmarkError when the op fails."""
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
    """Medians over the samples of one turn, in microseconds an op: of the slowest rank of each sample, and of rank
    0."""

    slowest_us: float
    rank0_us: float
    samples: int


@dataclass(frozen=True)
class Figure:
    """What one subject took for one op, in microseconds.

    Attributes:
        us: the slowest rank's time: the median over blocks of the medians over samples.
        rank0_us: rank 0's time, likewise.
        low_us, high_us: the quartiles of `us` over blocks: how far to trust it.
        blocks, samples: how many there were.
    """

    us: float
    rank0_us: float
    low_us: float
    high_us: float
    blocks: int
    samples: int

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Figure:
        """Sums up the blocks of one subject; at least one."""
        slowest = sorted(block.slowest_us for block in blocks)
        low, high = (slowest[0], slowest[-1])
        if len(slowest) > 1:
            low, _, high = statistics.quantiles(slowest, n=4, method="inclusive")
        rank0 = statistics.median(block.rank0_us for block in blocks)
        samples = sum(block.samples for block in blocks)
        return cls(statistics.median(slowest), rank0, low, high, len(blocks), samples)

    @classmethod
    def computed(cls, us: float) -> Figure:
        """A time that nobody measured; it has no blocks."""
        return cls(us, us, us, us, 0, 0)


@dataclass(frozen=True)
class Line:
    """What all subjects took for one op, and why the others of them do not offer it."""

    form: Form
    figures: Mapping[str, Figure]
    refusals: Mapping[str, str]


def measure(
    form: Form, subjects: Sequence[Subject], seconds: float, *, block_seconds: float = 0.06, least_blocks: int = 3
) -> Line:
    """Checks every subject's numbers, then measures them in turns.

    Args:
        seconds: for each subject, all its blocks together.
        block_seconds: about how long a block is to be; what is written anew and waited for counts as well.
        least_blocks: so many there are in any case.

    Raises:
        BenchmarkError: a number is wrong, or an op failed.
    """
    refusals = {subject.name: reason for subject in subjects if (reason := subject.check(form)) is not None}
    able = [subject for subject in subjects if subject.name not in refusals]
    samples = {}
    for subject in able:
        start = time.monotonic()
        subject.block(form, 1)
        # 1 and the 2 that do not count.
        samples[subject.name] = _fitting(min(block_seconds, seconds), (time.monotonic() - start) / 3)
    blocks: dict[str, list[Block]] = {subject.name: [] for subject in able}
    deadline = time.monotonic() + seconds * len(able)
    turn = 0
    while able and (turn < least_blocks or time.monotonic() < deadline):
        # Another one begins each time: nobody always comes right after the same predecessor.
        for place in range(len(able)):
            subject = able[(turn + place) % len(able)]
            blocks[subject.name].append(subject.block(form, samples[subject.name]))
        turn += 1
    return Line(form, {name: Figure.of(measured) for name, measured in blocks.items()}, refusals)


def _fitting(block_seconds: float, sample_seconds: float) -> int:
    return max(1, min(_LARGEST_SAMPLES, round(block_seconds / max(1e-9, sample_seconds))))
