"""Starts the ranks of a job as real processes, runs a function in each, and reports the result of every one of them.

    def average(rank):
        context.init()
        ...
        return value

    values = run_ranks(2, average)

The function may be local to a test: it is sent by value. A rank that hangs is killed, and the failure shows its stacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, make_local_rendezvous

_DUMP_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Outcome:
    """What became of one rank.

    Attributes:
        rank: which.
        value: what its function returned; None when it did not.
        error: what its function raised; None when it did not.
        trace: the traceback of that, as text.
        exit_code: of the process; negative is the number of the signal that killed it; None while it hung.
        output: what it wrote to stdout and stderr.
    """

    rank: int
    value: Any
    error: BaseException | None
    trace: str
    exit_code: int | None
    output: str

    @property
    def returned(self) -> bool:
        return self.exit_code == 0 and self.error is None

    def __str__(self) -> str:
        header = f"--- rank {self.rank}: exit code {self.exit_code}"
        return "\n".join(part for part in (header, self.trace.rstrip(), self.output.rstrip()) if part)


class RanksFailedError(AssertionError):
    """Some ranks did not return; `outcomes` has the results of all."""

    def __init__(self, why: str, outcomes: Sequence[Outcome]) -> None:
        super().__init__("\n".join([why, *(str(outcome) for outcome in outcomes)]))
        self.outcomes = list(outcomes)


@dataclass
class _Rank:
    process: subprocess.Popen[bytes]
    output: Path
    result: int  # read end of the pipe of its outcome
    pickled: bytearray = field(default_factory=bytearray)


class Ranks:
    """The running ranks of one job. A context manager: on leaving it, nothing of them is left alive.

    Args:
        function: called in each rank as ``function(rank, *args)``.
        rendezvous: of each rank, with its sockets, which are closed here once they are inherited.
        args: must pickle.
        environ: variables for the ranks, over this process's.
        place: returns, for a rank, the context to enter around the start of its process, such as another network
            namespace.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rendezvous: Sequence[tuple[Rendezvous, Endpoint]],
        *,
        args: Sequence[Any] = (),
        environ: Mapping[str, str] | None = None,
        place: Callable[[int], contextlib.AbstractContextManager[None]] = lambda rank: contextlib.nullcontext(),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks")
        self._ranks: list[_Rank] = []
        payload = _pickled(function, tuple(args))
        try:
            for facts, endpoint in rendezvous:
                with place(facts.rank):
                    self._ranks.append(self._start(facts, endpoint, payload, environ or {}))
        except BaseException:
            self.close()
            raise
        finally:
            for _, endpoint in rendezvous:
                endpoint.close()

    def _start(self, facts: Rendezvous, endpoint: Endpoint, payload: bytes, environ: Mapping[str, str]) -> _Rank:
        output = Path(self._folder.name, f"rank{facts.rank}.txt")
        path = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
        read, write = os.pipe()
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-c", "from tests.ranks import _main; _main()", str(write)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=(write, *endpoint.filenos()),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environ},
            )
        os.close(write)
        assert process.stdin is not None
        # A rank that dies at once shows by its outcome.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(cloudpickle.dumps((facts.to_json(), payload)))
            process.stdin.close()
        return _Rank(process, output, read)

    def pid(self, rank: int) -> int:
        return self._ranks[rank].process.pid

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to one rank."""
        self._ranks[rank].process.send_signal(number)

    def output(self, rank: int) -> str:
        """What a rank has written so far."""
        return self._ranks[rank].output.read_text(errors="replace")

    def await_output(self, rank: int, text: str, timeout: float = 60) -> None:
        """Returns once a rank has written `text`; fails when it does not, or ends before."""
        deadline = time.monotonic() + timeout
        while text not in self.output(rank):
            ended = self._ranks[rank].process.poll() is not None
            if time.monotonic() > deadline or (ended and text not in self.output(rank)):
                raise RanksFailedError(f"rank {rank} did not write {text!r}", self.wait(0.1))
            time.sleep(0.01)

    def await_end(self, rank: int, timeout: float = 60) -> None:
        """Returns once a rank's process has ended; fails when it does not. What it returns must fit into a pipe."""
        try:
            self._ranks[rank].process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RanksFailedError(f"rank {rank} did not end", self.wait(0.1)) from None

    def wait(self, timeout: float = 100) -> list[Outcome]:
        """Waits for all ranks and returns the result of each.

        Raises:
            RanksFailedError: some had not ended after `timeout` seconds; their stacks are in it, and they are dead.
        """
        readers = [threading.Thread(target=_read_all, args=(rank,), daemon=True) for rank in self._ranks]
        for reader in readers:
            reader.start()
        deadline = time.monotonic() + timeout
        hanging = []
        for number, rank in enumerate(self._ranks):
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                hanging.append(number)
        for number in hanging:
            self._ranks[number].process.send_signal(_DUMP_SIGNAL)
        if hanging:
            time.sleep(1.0)  # for the stacks to be written
        self._kill_all()
        for reader in readers:
            reader.join()
        outcomes = [self._outcome(number, number in hanging) for number in range(len(self._ranks))]
        if hanging:
            raise RanksFailedError(f"after {timeout} seconds these ranks had not ended: {hanging}", outcomes)
        return outcomes

    def _outcome(self, number: int, hung: bool) -> Outcome:
        rank = self._ranks[number]
        code = None if hung else rank.process.returncode
        value, error, trace = None, None, ""
        # A rank that is killed may have written a part of its outcome.
        with contextlib.suppress(*((pickle.UnpicklingError, EOFError) if code and code < 0 else ())):
            if rank.pickled:
                value, error, trace = cloudpickle.loads(rank.pickled)
        return Outcome(number, value, error, trace, code, rank.output.read_text(errors="replace"))

    def _kill_all(self) -> None:
        for rank in self._ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()

    def close(self) -> None:
        self._kill_all()
        for rank in self._ranks:
            if rank.result >= 0:
                os.close(rank.result)
                rank.result = -1
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_ranks(
    n: int,
    function: Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    environ: Mapping[str, str] | None = None,
    encrypted: bool = False,
) -> Ranks:
    """Starts `n` ranks on this host; for tests that do something to them while they run."""
    return Ranks(function, make_local_rendezvous(n, encrypted=encrypted), args=args, environ=environ)


def run_ranks(
    n: int,
    function: Callable[..., Any],
    timeout: float = 60,
    *,
    args: Sequence[Any] = (),
    environ: Mapping[str, str] | None = None,
    encrypted: bool = False,
) -> list[Any]:
    """What ``function(rank, *args)`` returns in each of `n` ranks.

    Raises:
        RanksFailedError: a rank raised, died, or had not ended after `timeout` seconds. The text names all ranks.
    """
    with start_ranks(n, function, args=args, environ=environ, encrypted=encrypted) as ranks:
        outcomes = ranks.wait(timeout)
    if not all(outcome.returned for outcome in outcomes):
        failed = [outcome.rank for outcome in outcomes if not outcome.returned]
        raise RanksFailedError(f"these ranks did not return: {failed}", outcomes)
    return [outcome.value for outcome in outcomes]


def on_hosts(hosts: Sequence[str], *, share_memory: bool = True) -> list[tuple[Rendezvous, Endpoint]]:
    """A rendezvous and an endpoint for each rank, on this machine, as if rank r were on ``hosts[r]``.

    Args:
        hosts: their names.
        share_memory: whether the ranks of one host do.
    """
    job = make_local_rendezvous(len(hosts))
    peers = tuple(
        replace(peer, host=host, host_id=host, local_name=peer.local_name if share_memory else "")
        for peer, host in zip(job[0][0].peers, hosts, strict=True)
    )
    return [(replace(rendezvous, peers=peers), endpoint) for rendezvous, endpoint in job]


def _pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function by value: the ranks cannot import test modules by the names that pytest gives them."""
    module: ModuleType | None = sys.modules.get(function.__module__)
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((function, args))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _read_all(rank: _Rank) -> None:
    with contextlib.suppress(OSError):
        while part := os.read(rank.result, 1 << 20):
            rank.pickled += part


def _main() -> None:
    """What each rank's process runs."""
    result = int(sys.argv[1])
    os.set_inheritable(result, False)
    os.register_at_fork(after_in_child=lambda: os.close(result))  # who waits for the end of the pipe waits for us only
    faulthandler.enable()
    faulthandler.register(_DUMP_SIGNAL, all_threads=True)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives the test run
    text, payload = cloudpickle.load(sys.stdin.buffer)
    rendezvous = Rendezvous.from_json(text)
    rendezvous_module.set_current(rendezvous)
    value: Any = None
    error: BaseException | None = None
    trace = ""
    try:
        function, args = cloudpickle.loads(payload)
        value = function(rendezvous.rank, *args)
    except BaseException as raised:
        error, trace = raised, traceback.format_exc()
    try:
        pickled = cloudpickle.dumps((value, error, trace))
    except Exception:
        pickled = cloudpickle.dumps((None, RuntimeError(repr(error or value)), trace or traceback.format_exc()))
    with os.fdopen(result, "wb") as sink:
        sink.write(pickled)
