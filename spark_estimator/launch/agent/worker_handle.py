"""The handle of a worker on another host, whose supervisor runs in that host's agent."""

from __future__ import annotations

import enum
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.worker.worker_host import rename_host
from spark_estimator.observe.driver_log import coloured, printable
from spark_estimator.observe.progress import Progress
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.state_machine import StateMachine

_RELAYED_BYTES = 1 << 16
# How long to wait for the end of a worker that is not needed; after that its agent ends it.
_DISCARDED = timedelta(seconds=2)


class RemoteState(enum.Enum):
    """What the agent has reported of a worker."""

    NEW = "Nothing."
    STARTED = "Where it listens."
    ENDED = "How it has ended; or the host is out of contact."


class RemoteEvent(enum.Enum):
    """The events of a worker on another host."""

    START = "It has started."
    END = "It has ended, or is lost with its host."


#: (state, event) -> next state.
TRANSITIONS = {
    (RemoteState.NEW, RemoteEvent.START): RemoteState.STARTED,
    **{(state, RemoteEvent.END): RemoteState.ENDED for state in RemoteState},
}


class RemoteWorkerHandle:
    """A `WorkerHandle` on another host.

    Args:
        host: as the user calls it.
        to_agent: the link with its agent.
        number, rank, link: as in `HostConnection.make_worker_handle`.
        relay: as in `Supervisor`.
        closing: whether the connection has been closed on purpose.
    """

    def __init__(
        self,
        host: str,
        to_agent: AgentLink,
        number: int,
        rank: int,
        relay: Relay,
        link: socket.socket | None,
        closing: Callable[[], bool],
    ) -> None:
        self.pid = 0
        self._host = host
        self._to_agent = to_agent
        self._number = number
        self._rank = rank
        self._relay = relay
        self._link = link
        self._closing = closing
        self._value = bytearray()
        self._events: queue.Queue[PeerFacts | Outcome] = queue.Queue()  # at most one of each
        self._state = StateMachine(RemoteState.NEW, TRANSITIONS)
        self._lock = threading.Lock()
        self._asked_to_start = False
        self._stopped: str | None = None
        self._failed = False

    @property
    def over(self) -> bool:
        """Return whether its worker has ended."""
        return self._state.state is RemoteState.ENDED

    def start(self) -> PeerFacts | Outcome:
        with self._lock:
            if self._stopped is not None:
                return self._make_stopped_outcome()
            self._to_agent.send_json(frames.START, process=self._number, linked=self._link is not None)
            self._asked_to_start = True
        if self._link is not None:
            ReaderThread(self._pass_on, self._end_link, name=f"link of process {self._number}").start()
        event = self._events.get()
        if isinstance(event, PeerFacts):
            self.pid = event.pid
            return rename_host(event, self._host)
        return event

    def run(self, rendezvous: Rendezvous) -> Outcome:
        """Have the worker become a rank, and wait for its end."""
        self._rank = -1 if rendezvous.awaited else rendezvous.rank
        self._to_agent.send_json(frames.RUN, process=self._number, rendezvous=rendezvous.to_json())
        while not isinstance(event := self._events.get(), Outcome):
            pass
        return event

    def set_rank(self, rank: int) -> None:
        self._rank = rank
        self._to_agent.send_json(frames.BECOME, process=self._number, rank=rank)

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        with self._lock:
            self._stopped = self._stopped or reason
            if self._asked_to_start:
                self._to_agent.send_json(frames.STOP, process=self._number, reason=reason, at_once=at_once)

    def discard(self) -> None:
        self.stop("because it is not needed", at_once=True)
        with suppress(queue.Empty):
            while not isinstance(self._events.get(timeout=_DISCARDED.total_seconds()), Outcome):
                pass

    # --- frames from the agent, in the thread that reads them ---

    def take(self, letter: bytes, fields: Mapping[str, Any]) -> None:
        if letter == frames.STARTED:
            if not self._state.allows(RemoteEvent.START):
                raise ValueError(f"process {self._number} has started twice")
            self._state.fire(RemoteEvent.START)
            self._events.put(PeerFacts(**fields["facts"]))
        elif letter == frames.BEGUN:
            self.pid = int(fields["pid"])
            self._relay.note_begin(int(fields["rank"]), self.pid)
        elif letter == frames.LINE:
            self._relay.pass_lines(int(fields["rank"]), str(fields["stream"]), [coloured(str(fields["text"]))])
        elif letter == frames.MESSAGE:
            self._relay.log(int(fields["rank"]), printable(str(fields["text"])))
        elif letter == frames.PROGRESS:
            self._relay.note_progress(int(fields["rank"]), Progress.from_dict(fields["report"]))
        elif letter == frames.RECORD:
            self._relay.record(int(fields["rank"]), dict(fields["record"]))
        elif letter == frames.FILE:
            self._relay.pass_file(int(fields["rank"]), str(fields["name"]), str(fields["piece"]))
        elif letter == frames.FAILURE:
            self._fail(FailureReport.from_dict(fields["report"]))
        elif letter == frames.OUTCOME:
            self._end(self._read_outcome(fields))
        else:
            raise ValueError(f"unknown frame {letter!r}")

    def take_value(self, piece: bytes, limit: int) -> None:
        if len(self._value) + len(piece) > limit:
            raise ValueError(f"a value of more than {limit} bytes")
        self._value += piece

    def take_relayed(self, piece: bytes) -> None:
        if self._link is not None:
            with suppress(OSError):
                self._link.sendall(piece)

    def note_loss(self, why: str) -> None:
        """Note that the host is out of contact."""
        if self.over:
            return
        if self._stopped is not None or self._closing():
            self._end(self._make_stopped_outcome())
            return
        message = f"is out of contact: {why}"
        report = FailureReport(self._rank, self._host, self.pid, failures.LOST, message, when=time.monotonic())
        self._fail(report)
        self._end(Outcome(self._rank, self._host, self.pid, -signal.SIGKILL, report))

    def _make_stopped_outcome(self) -> Outcome:
        message = f"was stopped {self._stopped or 'with its host'}"
        report = FailureReport(self._rank, self._host, self.pid, failures.STOPPED, message, when=time.monotonic())
        return Outcome(self._rank, self._host, self.pid, -signal.SIGKILL, report)

    def _fail(self, report: FailureReport) -> None:
        if not self._failed:
            self._failed = True
            self._relay.note_failure(replace(report, rank=self._rank))

    def _read_outcome(self, fields: Mapping[str, Any]) -> Outcome:
        failure = None
        if fields["failure"] is not None:
            failure = replace(FailureReport.from_dict(fields["failure"]), rank=self._rank)
            if failure.kind == failures.NOT_STARTED:
                self._fail(failure)
        value = bytes(self._value) if fields["bytes"] == len(self._value) else None
        self._value.clear()
        return Outcome(
            rank=self._rank,
            host=self._host,
            pid=int(fields["pid"]),
            exit_code=int(fields["exit_code"]),
            failure=failure,
            value=value or None,
            sha256=str(fields["sha256"]),
        )

    def _end(self, outcome: Outcome) -> None:
        if not self._state.fire(RemoteEvent.END):
            return
        if self._link is not None:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
        self._events.put(outcome)

    def _pass_on(self) -> None:
        assert self._link is not None
        while received := self._link.recv(_RELAYED_BYTES):
            self._to_agent.send_bytes(frames.RELAYED, self._number, received)

    def _end_link(self, error: BaseException | None) -> None:
        assert self._link is not None
        self._link.close()
        if error is not None and not isinstance(error, OSError):  # the worker would wait for an answer for ever
            self.stop(f"because what the launcher told it could not be passed on: {error!r}", at_once=True)
