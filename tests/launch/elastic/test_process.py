"""One process of an elastic job: every kind of end is an event, and its link carries its frames."""

from __future__ import annotations

import os
import socket
from typing import Any

import cloudpickle
import pytest

from spark_estimator.collectives.launcher_link import UPDATED, pack
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.elastic.process import Process
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.events import Begun, Ended, EventQueue, FrameReceived
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle


class Case:
    """A process on this host, and its events."""

    def __init__(self) -> None:
        payload = cloudpickle.dumps((lambda: os.environ["HOROVOD_RANK"], (), {}))
        environment = make_worker_environment(os.environ, {}, decide_host_threads(1))
        job = JobSpec("job", 1, "work()", payload=payload, environment=environment)
        self.links: list[socket.socket] = []

        def make(host: str, number: int, rank: int, relay: Any, link: socket.socket) -> LocalWorkerHandle:
            self.links.append(link.dup())
            return LocalWorkerHandle(job, relay, host=host, link=link)

        self.events = EventQueue()
        self.process = Process(7, 0, "alpha", make, self.events)

    def event(self) -> Any:
        return self.events.get(timeout=60)

    def close(self) -> None:
        self.links[0].close()
        self.process.thread.join(20)
        self.process.link.close()


@pytest.fixture
def case() -> Any:
    case = Case()
    yield case
    case.close()


def test_a_process_that_ends_well(case: Case) -> None:
    assert case.process.started.wait(60)
    facts = case.process.facts
    assert isinstance(facts, PeerFacts) and facts.host == "alpha"
    case.process.tell(Rendezvous(make_job_id(), make_key(), 0, (facts,), -1))
    events = [case.event(), case.event()]
    assert events[0] == Begun(0, facts.pid)
    assert isinstance(events[1], Ended) and events[1].process == 7 and events[1].error is None
    outcome = events[1].outcome
    assert outcome is not None and cloudpickle.loads(outcome.pickled) == "0"


def test_a_process_that_is_not_needed_has_no_outcome(case: Case) -> None:
    case.process.tell(None)
    event = case.event()
    assert isinstance(event, Ended) and (event.process, event.outcome) == (7, None)
    assert isinstance(event.error, InterruptedError) and str(event.error) == "the job ended before it started"
    with pytest.raises(ProcessLookupError):
        os.kill(case.process.worker.pid, 0)


def test_frames_of_the_rank_are_events(case: Case) -> None:
    case.links[0].sendall(pack({"kind": UPDATED}))
    event = case.event()
    assert event == FrameReceived(7, {"kind": UPDATED})
    case.process.tell(None)


def test_a_process_whose_frames_cannot_be_read_is_ended(case: Case) -> None:
    """Its requests for a round would never be heard."""
    assert case.process.started.wait(60) and case.process.facts is not None
    case.process.tell(Rendezvous(make_job_id(), make_key(), 0, (case.process.facts,), -1, awaited=True))
    content = b"[" * 100_000
    case.links[0].sendall(len(content).to_bytes(4, "big") + content)
    while not isinstance(event := case.event(), Ended):
        pass
    assert event.outcome is not None and event.outcome.failure is not None
    assert "because its requests could not be read: ValueError" in event.outcome.failure.message
