"""The launcher's handle of a worker on another host: frames of its agent become events and an outcome."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.agent.worker_handle import TRANSITIONS, RemoteEvent, RemoteState, RemoteWorkerHandle
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.events import Begun, EventRelay, Failed, Lines, Message, RecordReceived
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome

FACTS = PeerFacts(0, "machine", "id", "192.0.2.2", 5000, pid=10)
ENDED = {"rank": 3, "host": "machine", "pid": 10, "exit_code": 0, "sha256": "", "failure": None, "bytes": None}


def membership(rank: int = 0, size: int = 1) -> Rendezvous:
    return Rendezvous(make_job_id(), make_key(), rank, tuple(replace(FACTS, rank=peer) for peer in range(size)), -1)


class Case:
    """A handle, what it sends to its agent, and its events."""

    def __init__(self) -> None:
        read, write = os.pipe()
        up, self.unused = os.pipe()
        zero = timedelta(0)
        self.link = AgentLink(up, write, zero, zero)
        self.sent = AgentLink(read, self.unused, zero, zero)
        self.descriptors = read, up
        self.events: queue.Queue[Any] = queue.Queue()
        self.ours, theirs = socket.socketpair()
        self.closing = False
        relay = EventRelay(self.events)
        self.handle = RemoteWorkerHandle("alpha", self.link, 5, 3, relay, theirs, lambda: self.closing)

    def shown(self) -> list[Any]:
        return [self.events.get_nowait() for _ in range(self.events.qsize())]

    def start(self) -> None:
        """Starts the worker; its agent has answered."""
        self.handle.take(frames.STARTED, {"facts": asdict(FACTS)})
        facts = self.handle.start()
        assert isinstance(facts, PeerFacts) and (facts.host, facts.host_id) == ("alpha", "id as alpha")

    def orders(self) -> list[tuple[bytes, dict[str, Any]]]:
        """All that was sent; ends the link."""
        self.link.close(timedelta(seconds=20))
        return [
            (letter, json.loads(content)) for letter, content in self.sent.read_frames() if letter != frames.RELAYED
        ]


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.ours.close()
    for link in (case.link, case.sent):
        link.give_up()
        link.close(timedelta(seconds=20))
    for descriptor in case.descriptors:
        os.close(descriptor)


def test_a_worker_that_ends_well(case: Case) -> None:
    case.start()
    case.handle.take(frames.BEGUN, {"rank": 3, "pid": 11})
    case.handle.take(frames.LINE, {"rank": 3, "stream": "stdout", "text": "a\x1b[2J"})
    case.handle.take(frames.MESSAGE, {"rank": 3, "text": "b\x1b[31m"})
    case.handle.take(frames.RECORD, {"rank": 3, "record": {"epoch": 1}})
    case.handle.take_value(b"val", 1000)
    case.handle.take_value(b"ue", 1000)
    case.handle.take(frames.OUTCOME, {**ENDED, "bytes": 5, "sha256": hashlib.sha256(b"value").hexdigest()})
    rendezvous = membership(3, 4)
    outcome = case.handle.run(rendezvous)
    assert (outcome.rank, outcome.host, outcome.failure, outcome.pickled) == (3, "alpha", None, b"value")
    record = RecordReceived(3, {"epoch": 1})
    assert case.shown() == [Begun(3, 11), Lines(3, "stdout", ["a\\x1b[2J"]), Message(3, "b\\x1b[31m"), record]
    case.handle.note_loss("too late")
    case.handle.stop("after that")
    orders = [(frames.START, {"process": 5, "linked": True})]
    orders += [(frames.RUN, {"process": 5, "rendezvous": rendezvous.to_json()})]
    assert case.orders() == [*orders, (frames.STOP, {"process": 5, "reason": "after that", "at_once": False})]


def test_a_value_that_is_not_whole_is_none(case: Case) -> None:
    case.start()
    case.handle.take_value(b"val", 1000)
    case.handle.take(frames.OUTCOME, {**ENDED, "bytes": 5})
    assert case.handle.run(membership()).value is None


def test_an_agent_cannot_fill_the_launcher_s_memory(case: Case) -> None:
    case.start()
    with pytest.raises(ValueError, match="has started twice"):
        case.handle.take(frames.STARTED, {"facts": asdict(FACTS)})
    case.handle.take_value(bytes(1000), 1000)
    with pytest.raises(ValueError, match="a value of more than 1000 bytes"):
        case.handle.take_value(b"x", 1000)


def test_a_host_out_of_contact_is_a_failure_of_its_rank(case: Case) -> None:
    case.start()
    case.handle.set_rank(1)
    case.handle.note_loss("no data or heartbeat for 5 seconds")
    outcome = case.handle.run(membership(1, 2))
    failure = outcome.failure
    assert failure is not None and outcome.exit_code == -signal.SIGKILL and case.handle.over
    assert (failure.rank, failure.host, failure.pid, failure.kind) == (1, "alpha", 10, failures.LOST)
    assert failure.message == "is out of contact: no data or heartbeat for 5 seconds"
    assert [event.report.kind for event in case.shown()] == [failures.LOST], "it is reported once"


def test_a_host_that_was_closed_on_purpose_is_no_failure(case: Case) -> None:
    case.start()
    case.closing = True
    case.handle.note_loss("the connection has ended")
    outcome = case.handle.run(membership())
    assert outcome.failure is not None and outcome.failure.kind == failures.STOPPED
    assert outcome.failure.message == "was stopped with its host" and case.shown() == []


def test_a_worker_that_was_stopped_first_is_never_started(case: Case) -> None:
    case.handle.stop("because of A")
    case.handle.stop("because of B")
    outcome = case.handle.start()
    assert isinstance(outcome, Outcome) and outcome.failure is not None
    assert outcome.failure.message == "was stopped because of A"
    assert case.orders() == []


def test_only_the_first_failure_is_an_event(case: Case) -> None:
    first = FailureReport(-1, "machine", 10, failures.NOT_STARTED, "could not be started", when=1.0)
    case.handle.take(frames.FAILURE, {"report": first.to_dict()})
    case.handle.take(frames.OUTCOME, {**ENDED, "failure": first.to_dict()})
    (event,) = case.shown()
    assert isinstance(event, Failed) and event.report.rank == 3
    assert event.report.when > 1.0, "by the launcher's clock"
    with pytest.raises(ValueError, match="unknown frame"):
        case.handle.take(b"?", {})


def test_an_elastic_worker_s_bytes_are_passed_on(case: Case) -> None:
    case.start()
    case.handle.take_relayed(b"down")
    assert case.ours.recv(100) == b"down"
    case.ours.sendall(b"up")
    received = case.sent.read_frames()
    assert next(received)[0] == frames.START
    assert next(received) == (frames.RELAYED, (5).to_bytes(4, "big") + b"up")


@pytest.mark.parametrize(
    ("state", "start", "end"),
    [
        (RemoteState.NEW, RemoteState.STARTED, RemoteState.ENDED),
        (RemoteState.STARTED, None, RemoteState.ENDED),
        (RemoteState.ENDED, None, RemoteState.ENDED),
    ],
)
def test_each_event_in_each_state(state: RemoteState, start: RemoteState | None, end: RemoteState) -> None:
    assert [TRANSITIONS.get((state, event)) for event in RemoteEvent] == [start, end]


def test_a_worker_ends_once(case: Case) -> None:
    case.start()
    case.handle.take(frames.OUTCOME, ENDED)
    case.handle.take(frames.OUTCOME, {**ENDED, "exit_code": 1})
    assert case.handle.run(membership()).exit_code == 0
    assert case.handle._events.empty()
    with pytest.raises(ValueError, match="has started twice"):
        case.handle.take(frames.STARTED, {"facts": asdict(FACTS)})
