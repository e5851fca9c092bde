"""The program that supervises the ranks of one host for a launcher on another host.

An elastic job's Spark task runs an agent for its one rank in its own process: ``launch.spark.elastic_task``. An agent
opens no port and writes no file. When its standard input ends or falls silent, it stops its ranks and ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, host_id
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import host_share, path_with_own_python, worker_environment
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec, worker_spec
from spark_estimator.launch.worker.supervisor import Supervisor
from spark_estimator.observe.progress import Progress

_LAST_WORDS = timedelta(seconds=5)
_RELAYED_BYTES = 1 << 16
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class HostOrder:
    """What an agent receives with the `JobSpec`.

    Attributes:
        name: how the launcher calls this host.
        folder: the working directory of the launcher.
        slots: how many ranks share the cores of this host.
        interfaces: as in `SshOptions`.
        gentle_seconds: as ``gentle`` in `Supervisor`.
        payload_bytes: how much of the pickled function follows.
    """

    name: str
    folder: str
    slots: int
    interfaces: tuple[str, ...]
    gentle_seconds: float
    payload_bytes: int


def hello() -> dict[str, Any]:
    """Who this agent is, in the frame that every version of it sends alike."""
    # "client address, client port, server address, server port"
    way = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "package": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "hostname": socket.gethostname(),
        "launcher_address": way[0] if len(way) == 4 else "",
        "own_address": way[2] if len(way) == 4 else "",
    }


def job_fields(job: JobSpec) -> dict[str, Any]:
    """A job as JSON, without its payload."""
    return {
        field.name: dict(value) if isinstance(value, Mapping) else value
        for field in fields(job)
        if field.name not in ("payload", "channel")
        for value in [getattr(job, field.name)]
    }


def read_job(fields: dict[str, Any]) -> JobSpec:
    """The inverse of `job_fields`."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return JobSpec(**values)


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """A worker's outcome as JSON, without its value."""
    failure = None if outcome.failure is None else outcome.failure.to_dict()
    return {name: getattr(outcome, name) for name in ("rank", "host", "pid", "exit_code", "sha256")} | {
        "failure": failure
    }


def address_of(interfaces: Sequence[str], otherwise: str) -> str:
    """The address at which ranks of this host listen.

    Args:
        interfaces: names; the first that this host has decides. Empty: `otherwise`, or the address
            of the host's name.

    Raises:
        OSError: there is none; the text names the interfaces that the host has.
    """
    if not interfaces:
        if otherwise:
            return otherwise
        return str(socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)[0][4][0])
    for name in interfaces:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            asked = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24])
        with suppress(OSError):
            for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
                digits, _, _, scope, _, device = line.split()
                if device == name and scope == "00":
                    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    there = ", ".join(name for _, name in socket.if_nameindex())
    raise OSError(
        f"it has no address on any of the network interfaces {', '.join(interfaces)}; its interfaces are {there}"
    )


class Agent:
    """One host's part of a job."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self.address = ""
        self.gentle = timedelta(0)
        self.payload = b""
        self.order: HostOrder | None = None
        self.job: JobSpec | None = None
        self._pieces = bytearray()
        self._processes: dict[int, _Process] = {}

    def run(self) -> None:
        """Carries out the launcher's orders until its stream ends, or the connection is lost."""
        self.link.send_json(frames.HELLO, **hello())
        reason = "because the launcher ended"
        try:
            for letter, content in self.link.frames():
                self._obey(letter, content)
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = f"because its host lost the connection to the launcher: {error}"
            print(f"spark_estimator: {reason}", file=sys.stderr)
        processes = list(self._processes.values())
        if any(process.thread.is_alive() for process in processes):
            self.link.give_up()  # nobody reads any more: no supervisor may wait for room
        for process in processes:
            process.stop(reason, at_once=False)
        for process in processes:
            process.thread.join()
        self.link.close(_LAST_WORDS)

    def hand_over(self, number: int, outcome: Outcome) -> None:
        """Tells the launcher how a worker has ended, and gives it its value."""
        self.link.send_bytes(frames.VALUE, number, outcome.value or b"")
        self.link.send_json(
            frames.OUTCOME,
            process=number,
            **outcome_fields(outcome),
            bytes=None if outcome.value is None else len(outcome.value),
        )

    def completed(self, rendezvous: Rendezvous) -> Rendezvous:
        """A rendezvous as the worker needs it: here as the launcher has sent it."""
        return rendezvous

    def passed_down(self, received: bytes) -> bytes:
        """What an elastic worker is given of that which its launcher sends it: here all, as it is."""
        return received

    def _obey(self, letter: bytes, content: bytes) -> None:
        if letter == frames.PAYLOAD:
            self._pieces += frames.of_process(content)[1]
            if self.order is not None and len(self._pieces) == self.order.payload_bytes:
                self.payload, self._pieces = bytes(self._pieces), bytearray()
            return
        if letter == frames.RELAYED:
            number, received = frames.of_process(content)
            self._processes[number].relay(received)
            return
        fields = json.loads(content)
        if letter == frames.JOB:
            self._prepare(fields)
        elif letter == frames.START:
            number = int(fields["process"])
            self._processes[number] = _Process(self, number, linked=bool(fields["linked"]))
        elif letter == frames.RUN:
            self._processes[fields["process"]].orders.put(Rendezvous.from_json(fields["rendezvous"]))
        elif letter == frames.BECOME:
            self._processes[fields["process"]].supervisor_do(lambda supervisor: supervisor.become(fields["rank"]))
        elif letter == frames.STOP:
            self._processes[fields["process"]].stop(fields["reason"], at_once=bool(fields["at_once"]))
        else:
            raise ValueError(f"unknown order {letter!r}")

    def _prepare(self, fields: dict[str, Any]) -> None:
        """Takes the job, and says where its ranks will listen, or why none can run here."""
        order = HostOrder(**{**fields["order"], "interfaces": tuple(fields["order"]["interfaces"])})
        job = read_job(fields["job"])
        note = ""
        try:
            os.chdir(order.folder)
        except OSError as error:
            note = f"the launcher's working directory {order.folder} doesn't exist there ({error.strerror})"
            if job.command:
                problem = f"{note}: put it on a shared file system, or start from another folder"
                self.link.send_json(frames.READY, address="", note="", problem=problem)
                return
            note += f"; its ranks start in {os.getcwd()}"
        try:
            self.address = address_of(order.interfaces, hello()["own_address"])
            Endpoint.open(self.address).close()
            path = {"PATH": path_with_own_python(job.environment.get("PATH") or os.environ.get("PATH", os.defpath))}
            environment = worker_environment(os.environ, {**job.environment, **path}, host_share(order.slots))
        except (OSError, ValueError) as error:
            self.link.send_json(frames.READY, address="", note="", problem=str(error))
            return
        # Modules that lie beside the user's script are looked for where they lie on the launcher's host.
        self.job = replace(job, environment=environment, driver_host_id=host_id())
        self.order = order
        self.gentle = timedelta(seconds=order.gentle_seconds)
        self.link.send_json(frames.READY, address=self.address, note=note, problem="")


class _Process:
    """One worker, from its start to its end, and the thread that supervises it. A `Relay` for its supervisor.

    Attributes:
        orders: the worker's rendezvous; None: it will never have one.
    """

    def __init__(self, agent: Agent, number: int, *, linked: bool) -> None:
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

    def supervisor_do(self, what: Callable[[Supervisor], None]) -> None:
        with self._lock:
            if self._supervisor is not None:
                what(self._supervisor)

    def stop(self, reason: str, *, at_once: bool) -> None:
        with self._lock:
            self._stopped = reason, at_once
            if self._supervisor is not None:
                self._supervisor.stop(reason, at_once=at_once)
        self.orders.put(None)

    def relay(self, received: bytes) -> None:
        if self._ours is not None:
            with suppress(OSError):
                self._ours.sendall(self._agent.passed_down(received))

    def _live(self) -> None:
        try:
            outcome = self._supervise()
        except BaseException as error:
            self.supervisor_do(lambda supervisor: supervisor.discard())
            outcome = self._ended(failures.NOT_STARTED, f"could not be started or supervised: {error!r}")
        self._agent.hand_over(self._number, outcome)

    def _supervise(self) -> Outcome:
        job, order = self._agent.job, self._agent.order
        if job is None or order is None:
            raise ValueError("a worker was requested before the job was sent")
        endpoint = Endpoint.open(self._agent.address)
        facts = endpoint.facts(0)
        inherited = [] if self._theirs is None else [self._theirs]
        supervisor = Supervisor(job, endpoint, self, gentle=self._agent.gentle, inherited=inherited, host=order.name)
        with self._lock:
            self._supervisor = supervisor
        supervisor.start()
        if self._ours is not None:
            threading.Thread(target=self._pass_on, daemon=True).start()
        facts = replace(facts, pid=supervisor.pid)
        self._link.send_json(frames.STARTED, process=self._number, facts=asdict(facts))
        rendezvous = self.orders.get()
        if rendezvous is None:
            supervisor.discard()
            return self._ended(failures.STOPPED, f"was stopped {(self._stopped or ('',))[0]}")
        rendezvous = replace(
            self._agent.completed(rendezvous),
            listen_fd=endpoint.tcp.fileno(),
            local_fd=-1 if endpoint.local is None else endpoint.local.fileno(),
            launcher_fd=-1 if self._theirs is None else self._theirs.fileno(),
        )
        return supervisor.run(worker_spec(job, rendezvous), self._agent.payload)

    def _ended(self, kind: str, message: str) -> Outcome:
        order = self._agent.order
        host = socket.gethostname() if order is None else order.name
        return Outcome(-1, host, 0, 1, FailureReport(-1, host, 0, kind, message, when=time.time()))

    def _pass_on(self) -> None:
        assert self._ours is not None
        with suppress(OSError):
            while received := self._ours.recv(_RELAYED_BYTES):
                self._link.send_bytes(frames.RELAYED, self._number, received)

    def begun(self, rank: int, pid: int) -> None:
        """User code begins."""
        self._link.send_json(frames.BEGUN, process=self._number, rank=rank, pid=pid)

    def lines(self, rank: int, stream: str, texts: Sequence[str]) -> None:
        """Lines of "stdout" or "stderr"."""
        for text in texts:
            self._link.send_json(frames.LINE, process=self._number, rank=rank, stream=stream, text=text)

    def log(self, rank: int, message: str) -> None:
        """A message for the person at the launcher."""
        self._link.send_json(frames.MESSAGE, process=self._number, rank=rank, text=message)

    def progress(self, rank: int, progress: Progress) -> None:
        """How far the rank is."""
        self._link.send_json(frames.PROGRESS, process=self._number, rank=rank, report=progress.to_dict())

    def failed(self, report: FailureReport) -> None:
        """The rank has failed."""
        self._link.send_json(frames.FAILURE, process=self._number, report=report.to_dict())


def main() -> None:
    """Entry point; `command.agent_command` has it called, with the seconds of heartbeat and silence as arguments."""
    heartbeat, silence = (timedelta(seconds=float(text)) for text in sys.argv[1:3])
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # what is printed by mistake must not get between the frames
    os.write(sink, frames.OPENING)
    Agent(AgentLink(source, sink, heartbeat, silence)).run()
    sys.stderr.flush()
    os._exit(0)  # a writer that waits for a launcher that does not read must not hold this process up
