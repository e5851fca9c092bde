"""The base of all agents: starts, runs and stops workers as the launcher orders, and passes on what they report.

What the workers run is the agent's `Program`. No order that is carried out here changes it.
"""

from __future__ import annotations

import os
import platform
import queue
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec, make_worker_spec
from spark_estimator.launch.worker.supervisor import Supervisor
from spark_estimator.observe.progress import Progress
from spark_estimator.peer_json import parse_json
from spark_estimator.reader_thread import ReaderThread

_LAST_WORDS = timedelta(seconds=5)
_RELAYED_BYTES = 1 << 16
# The orders in JSON that are carried out here, and their fields.
_FIELDS = {
    frames.START: {"process", "linked"},
    frames.RUN: {"process", "rendezvous"},
    frames.STOP: {"process", "reason", "at_once"},
    frames.BECOME: {"process", "rank"},
}


@dataclass(frozen=True)
class Program:
    """The program of an agent's workers, and their place.

    Attributes:
        job: with the environment that the workers get.
        payload: the job's pickled function; b"" for a command.
        host: how the launcher calls this host.
        address: of this host, at which its workers listen.
        gentle: as in `Supervisor`.
    """

    job: JobSpec
    payload: bytes = field(repr=False)
    host: str
    address: str
    gentle: timedelta = timedelta(0)


def make_hello() -> dict[str, Any]:
    """Return this agent's identity, in the frame that is the same in every version."""
    # "client address, client port, server address, server port"
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "package": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "hostname": socket.gethostname(),
        "launcher_address": connection[0] if len(connection) == 4 else "",
        "own_address": connection[2] if len(connection) == 4 else "",
    }


def pack_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return a worker's outcome as JSON fields, without its value."""
    failure = None if outcome.failure is None else outcome.failure.to_dict()
    return {name: getattr(outcome, name) for name in ("rank", "host", "pid", "exit_code", "sha256")} | {
        "failure": failure
    }


class WorkerAgent(ABC):
    """The workers of one host, started and stopped on a launcher's orders; `program`: None until it is received."""

    def __init__(self, link: AgentLink, program: Program | None) -> None:
        self.link = link
        self.program = program
        self._processes: dict[int, _Process] = {}

    def run(self) -> None:
        """Carry out the launcher's orders until its stream ends, the connection is lost, or one is refused."""
        self.link.send_json(frames.HELLO, **make_hello())
        reason = "because the launcher ended"
        try:
            for letter, content in self.link.read_frames():
                self._carry_out(letter, content)
        except OSError as error:
            reason = f"because its host lost the connection to the launcher: {error}"
            self._note(reason)
        except Exception as error:  # mostly ValueError, TypeError, KeyError
            reason = f"because its host got an invalid order from the launcher: {str(error) or repr(error)}"
            self._note(reason)
        processes = list(self._processes.values())
        if any(process.thread.is_alive() for process in processes):
            self.link.give_up()  # no reader is left: no supervisor may wait for room
        for process in processes:
            process.stop(reason, at_once=False)
        for process in processes:
            process.thread.join()
        self.link.close(_LAST_WORDS)

    @staticmethod
    def _note(text: str) -> None:
        with suppress(OSError):
            print(f"spark_estimator: {text}", file=sys.stderr)

    @abstractmethod
    def hand_over(self, number: int, outcome: Outcome) -> None:
        """Report to the launcher how a worker has ended, and send its value."""

    def complete(self, rendezvous: Rendezvous) -> Rendezvous:
        """Return a rendezvous as the worker needs it: here as the launcher has sent it."""
        return rendezvous

    def translate_relayed(self, received: bytes) -> bytes:
        """Return the bytes from the launcher that an elastic worker gets: here all of them, unchanged."""
        return received

    def _carry_out(self, letter: bytes, content: bytes) -> None:
        if letter == frames.RELAYED:
            number, received = frames.split_process(content)
            self._processes[number].relay(received)
            return
        if letter not in _FIELDS:
            raise ValueError(f"{frames.describe_order(letter)} is refused: this agent does not carry it out")
        fields = parse_json(content)
        if not isinstance(fields, dict) or fields.keys() != _FIELDS[letter]:
            raise ValueError(
                f"{frames.describe_order(letter)} is refused: its fields must be {sorted(_FIELDS[letter])}"
            )
        number = int(fields["process"])
        if letter == frames.START:
            self._processes[number] = _Process(self, number, linked=bool(fields["linked"]))
        elif letter == frames.RUN:
            self._processes[number].orders.put(Rendezvous.from_json(fields["rendezvous"]))
        elif letter == frames.BECOME:
            self._processes[number].call_supervisor(lambda supervisor: supervisor.set_rank(fields["rank"]))
        else:
            self._processes[number].stop(fields["reason"], at_once=bool(fields["at_once"]))


class _Process:
    """One worker, with the thread that supervises it, whose `Relay` it is; `orders`: its rendezvous, if any."""

    def __init__(self, agent: WorkerAgent, number: int, *, linked: bool) -> None:
        self.orders: queue.Queue[Rendezvous | None] = queue.Queue()
        self._agent = agent
        self._link = agent.link
        self._number = number
        self._lock = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._stopped: tuple[str, bool] | None = None
        self._ours: socket.socket | None = None
        self._theirs: socket.socket | None = None
        if linked:
            self._ours, self._theirs = socket.socketpair()
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        self.thread = threading.Thread(target=self._live, name=f"spark_estimator process {number}", daemon=True)
        self.thread.start()

    def call_supervisor(self, call: Callable[[Supervisor], None]) -> None:
        with self._lock:
            if self._supervisor is not None:
                call(self._supervisor)

    def stop(self, reason: str, *, at_once: bool) -> None:
        with self._lock:
            self._stopped = reason, at_once
            if self._supervisor is not None:
                self._supervisor.stop(reason, at_once=at_once)
        self.orders.put(None)

    def relay(self, received: bytes) -> None:
        if self._ours is not None:
            with suppress(OSError):
                self._ours.sendall(self._agent.translate_relayed(received))

    def _live(self) -> None:
        try:
            outcome = self._supervise()
        except BaseException as error:
            self.call_supervisor(lambda supervisor: supervisor.discard())
            outcome = self._make_failed_outcome(failures.NOT_STARTED, f"could not be started or supervised: {error!r}")
        self._agent.hand_over(self._number, outcome)

    def _supervise(self) -> Outcome:
        program = self._agent.program
        if program is None:
            raise ValueError("a worker was requested before the job was sent")
        job = program.job
        endpoint = Endpoint.open(program.address)
        facts = endpoint.facts(0)
        inherited = [] if self._theirs is None else [self._theirs]
        supervisor = Supervisor(job, endpoint, self, gentle=program.gentle, inherited=inherited, host=program.host)
        with self._lock:
            self._supervisor = supervisor
        supervisor.start()
        if self._ours is not None:
            ReaderThread(self._pass_on, self._end_link, name=f"link of process {self._number}").start()
        facts = replace(facts, pid=supervisor.pid)
        self._link.send_json(frames.STARTED, process=self._number, facts=asdict(facts))
        rendezvous = self.orders.get()
        if rendezvous is None:
            supervisor.discard()
            return self._make_failed_outcome(failures.STOPPED, f"was stopped {(self._stopped or ('',))[0]}")
        rendezvous = replace(
            self._agent.complete(rendezvous),
            listen_fd=endpoint.tcp.fileno(),
            local_fd=-1 if endpoint.local is None else endpoint.local.fileno(),
            launcher_fd=-1 if self._theirs is None else self._theirs.fileno(),
        )
        payload = (self._agent.program or program).payload  # it may have been received since
        return supervisor.run(make_worker_spec(job, rendezvous), payload)

    def _make_failed_outcome(self, kind: str, message: str) -> Outcome:
        program = self._agent.program
        host = socket.gethostname() if program is None else program.host
        return Outcome(-1, host, 0, 1, FailureReport(-1, host, 0, kind, message, when=time.monotonic()))

    def _pass_on(self) -> None:
        assert self._ours is not None
        while received := self._ours.recv(_RELAYED_BYTES):
            self._link.send_bytes(frames.RELAYED, self._number, received)

    def _end_link(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, OSError):  # the worker would wait for an answer for ever
            self.stop(f"because its requests could not be passed on: {error!r}", at_once=True)

    def note_begin(self, rank: int, pid: int) -> None:
        self._link.send_json(frames.BEGUN, process=self._number, rank=rank, pid=pid)

    def pass_lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        for text in texts:
            self._link.send_json(frames.LINE, process=self._number, rank=rank, stream=stream, text=text)

    def log(self, rank: int, message: str) -> None:
        self._link.send_json(frames.MESSAGE, process=self._number, rank=rank, text=message)

    def note_progress(self, rank: int, progress: Progress) -> None:
        self._link.send_json(frames.PROGRESS, process=self._number, rank=rank, report=progress.to_dict())

    def record(self, rank: int, record: Mapping[str, Any]) -> None:
        self._link.send_json(frames.RECORD, process=self._number, rank=rank, record=dict(record))

    def pass_file(self, rank: int, name: str, piece: str) -> bool:
        self._link.send_json(frames.FILE, process=self._number, rank=rank, name=name, piece=piece)
        return self._link.usable

    def note_failure(self, report: FailureReport) -> None:
        self._link.send_json(frames.FAILURE, process=self._number, report=report.to_dict())
