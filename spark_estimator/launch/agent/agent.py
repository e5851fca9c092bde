"""The program that supervises the ranks of one host on the orders of a launcher on another host.

It is reached only by ssh, which authenticates both ends. An agent opens no port and writes no file. When its standard
input ends, or brings no heartbeat, it stops its ranks and ends.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator.collectives.rendezvous import Endpoint, host_id
from spark_estimator.env import Settings
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.agent.worker_agent import Program, WorkerAgent, make_hello, pack_outcome
from spark_estimator.launch.job.environment import add_own_python, decide_host_threads, make_worker_environment
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.peer_json import parse_object
from spark_estimator.posix import fcntl

_SIOCGIFADDR = 0x8915
_WARN_EVERY = timedelta(seconds=1)


@dataclass(frozen=True)
class HostOrder:
    """The data that an agent receives with the `JobSpec`.

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


def pack_job(job: JobSpec) -> dict[str, Any]:
    """Return a job as JSON fields, without its payload."""
    return {
        field.name: dict(value) if isinstance(value, Mapping) else value
        for field in fields(job)
        if field.name not in ("payload", "channel")
        for value in [getattr(job, field.name)]
    }


def unpack_job(fields: dict[str, Any]) -> JobSpec:
    """Make the job from what `pack_job` returned."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return JobSpec(**values)


def find_address(interfaces: Sequence[str], otherwise: str) -> str:
    """Return this host's address on the first of these interfaces that it has, or `otherwise`, or that of its name.

    Raises OSError: there is none; the text names the interfaces that the host has.
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
    existing = ", ".join(name for _, name in socket.if_nameindex())
    raise OSError(
        f"it has no address on any of the network interfaces {', '.join(interfaces)}; its interfaces are {existing}"
    )


class HostAgent(WorkerAgent):
    """One host's part of a job: the launcher sends what its workers run."""

    def __init__(self, link: AgentLink) -> None:
        super().__init__(link, None)
        self._payload_bytes = 0
        self._pieces = bytearray()

    def hand_over(self, number: int, outcome: Outcome) -> None:
        self.link.send_bytes(frames.VALUE, number, outcome.value or b"")
        self.link.send_json(
            frames.OUTCOME,
            process=number,
            **pack_outcome(outcome),
            bytes=None if outcome.value is None else len(outcome.value),
        )

    def _carry_out(self, letter: bytes, content: bytes) -> None:
        if letter == frames.PAYLOAD:
            self._pieces += frames.split_process(content)[1]
            if self.program is None or len(self._pieces) > self._payload_bytes:
                raise ValueError(f"a payload of more than {self._payload_bytes} bytes")
            if len(self._pieces) == self._payload_bytes:
                self.program = replace(self.program, payload=bytes(self._pieces))
                self._pieces = bytearray()
        elif letter == frames.JOB:
            self._prepare(parse_object(content))
        else:
            super()._carry_out(letter, content)

    def _prepare(self, fields: dict[str, Any]) -> None:
        """Receive the job, and reply with the address of its ranks, or with the reason why none can run here."""
        order = HostOrder(**{**fields["order"], "interfaces": tuple(fields["order"]["interfaces"])})
        job = unpack_job(fields["job"])
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
            address = find_address(order.interfaces, make_hello()["own_address"])
            Endpoint.open(address).close()
            path = {"PATH": add_own_python(job.environment.get("PATH") or os.environ.get("PATH", os.defpath))}
            environment = make_worker_environment(
                os.environ, {**job.environment, **path}, decide_host_threads(order.slots)
            )
        except (OSError, ValueError) as error:
            self.link.send_json(frames.READY, address="", note="", problem=str(error))
            return
        # Modules beside the user's script are searched at their paths on the launcher's host.
        job = replace(job, environment=environment, driver_host_id=host_id())
        gentle = timedelta(seconds=order.gentle_seconds)
        self.program = Program(job, b"", order.name, address, gentle)
        self._payload_bytes = order.payload_bytes
        self._pass_on_warnings(environment)
        self.link.send_json(frames.READY, address=address, note=note, problem="")

    def _pass_on_warnings(self, environment: Mapping[str, str]) -> None:
        """Have the signal that warns this host warn all of its ranks, also later ones. In the main thread."""
        warned = threading.Event()

        def pass_on(number: int) -> None:
            warned.wait()
            while True:  # a rank may have no handler yet, and ignores the signal until then
                for process in list(self._processes.values()):
                    process.call_supervisor(lambda supervisor: supervisor.warn(number))
                time.sleep(_WARN_EVERY.total_seconds())

        if name := Settings.read(environment).preemption_signal:
            number = signal.Signals[name]
            threading.Thread(target=pass_on, args=(number,), name="spark_estimator warning", daemon=True).start()
            signal.signal(number, lambda *_: warned.set())


def main() -> None:
    """Run the agent; `command.make_agent_command` passes the seconds of heartbeat and silence as arguments."""
    heartbeat, silence = (timedelta(seconds=float(text)) for text in sys.argv[1:3])
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # what is printed by mistake must not get between the frames
    os.write(sink, frames.OPENING)
    HostAgent(AgentLink(source, sink, heartbeat, silence)).run()
    sys.stderr.flush()
    os._exit(0)  # a writer that waits for a launcher that does not read must not hold this process up
