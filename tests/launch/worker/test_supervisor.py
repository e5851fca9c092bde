"""One worker under its supervisor: its events are in order, and a stopped worker gets its time to end."""

from __future__ import annotations

import os
import queue
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, make_job_id, make_key
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.events import Begun, EventRelay, Lines
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec, make_worker_spec
from spark_estimator.launch.worker.supervisor import Supervisor

PATIENT = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('asked to end')); "


class Case:
    """A command under a supervisor, with its events."""

    def __init__(self, code: str, gentle: timedelta = timedelta(0)) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.job = JobSpec(
            make_job_id(),
            1,
            "python",
            command=(sys.executable, "-S", "-c", code),
            environment=make_worker_environment(os.environ, {}, decide_host_threads(1)),
        )
        self.endpoint = Endpoint.open("127.0.0.1")
        self.facts = self.endpoint.facts(0)
        self.descriptors = self.endpoint.tcp.fileno(), self.endpoint.local and self.endpoint.local.fileno()
        self.supervisor = Supervisor(self.job, self.endpoint, EventRelay(self.events), gentle=gentle, host="alpha")

    def run(self) -> Outcome:
        self.supervisor.start()
        tcp, local = self.descriptors
        rendezvous = Rendezvous(make_job_id(), make_key(), 0, (self.facts,), tcp, -1 if local is None else local)
        return self.supervisor.run(make_worker_spec(self.job, rendezvous), b"")

    def shown(self) -> list[Any]:
        return [self.events.get_nowait() for _ in range(self.events.qsize())]


def test_lines_come_before_the_end() -> None:
    case = Case("import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)")
    outcome = case.run()
    assert (outcome.failure, outcome.exit_code, outcome.host) == (None, 0, "alpha")
    events = case.shown()
    # Two threads read what a worker prints and what it reports: a line can come before Begun.
    lines = [event for event in events if not isinstance(event, Begun)]
    assert len(events) == 3
    assert sorted((line.stream, line.texts) for line in lines) == [("stderr", ["err"]), ("stdout", ["out"])]


@pytest.mark.parametrize(("gentle", "words"), [(timedelta(seconds=60), ["asked to end"]), (timedelta(0), [])])
def test_a_stopped_worker_may_end_by_itself_where_it_has_time(gentle: timedelta, words: list[str]) -> None:
    case = Case(PATIENT + "print('begun', flush=True); time.sleep(1000)", gentle)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(case.run()))
    thread.start()
    while not isinstance(event := case.events.get(timeout=60), Lines):
        pass
    assert event.texts == ["begun"]
    case.supervisor.stop("because of a test")
    thread.join(60)
    (outcome,) = outcomes
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.message) == (failures.STOPPED, "was stopped because of a test")
    assert [text for event in case.shown() if isinstance(event, Lines) for text in event.texts] == words
