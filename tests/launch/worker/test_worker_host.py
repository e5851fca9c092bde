"""Handles of workers on this host."""

from __future__ import annotations

import os
import queue
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.events import EventRelay
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle, rename_host

FACTS = PeerFacts(0, "machine", "id", "127.0.0.1", 1)


def test_two_names_of_a_machine_are_two_hosts() -> None:
    alpha, beta = rename_host(FACTS, "alpha"), rename_host(FACTS, "beta")
    assert alpha.host == "alpha" and alpha.host_id != beta.host_id
    assert alpha == rename_host(replace(FACTS, host="other"), "alpha")
    assert rename_host(FACTS, "") == FACTS


@pytest.fixture
def handle() -> LocalWorkerHandle:
    environment = make_worker_environment(os.environ, {}, decide_host_threads(1))
    payload = cloudpickle.dumps((lambda: os.environ["HOROVOD_HOSTNAME"], (), {}))
    job = JobSpec("job", 1, "work()", payload=payload, environment=environment)
    events: queue.Queue[Any] = queue.Queue()
    return LocalWorkerHandle(job, EventRelay(events), host="alpha")


def test_a_worker_from_its_start_to_its_value(handle: LocalWorkerHandle) -> None:
    facts = handle.start()
    assert isinstance(facts, PeerFacts) and (facts.host, facts.pid) == ("alpha", handle.pid)
    outcome = handle.run(Rendezvous(make_job_id(), make_key(), 0, (facts,), -1))
    assert outcome.failure is None and cloudpickle.loads(outcome.pickled) == "alpha"


def test_a_worker_that_was_stopped_before_its_rank_was_known(handle: LocalWorkerHandle) -> None:
    facts = handle.start()
    assert isinstance(facts, PeerFacts)
    handle.stop("because of a test")
    outcome: Outcome = handle.run(Rendezvous(make_job_id(), make_key(), 0, (facts,), -1))
    assert outcome.failure is not None and outcome.failure.kind == failures.STOPPED
    assert outcome.failure.message == "was stopped because of a test"


def test_a_worker_that_is_not_needed_is_gone(handle: LocalWorkerHandle) -> None:
    handle.start()
    handle.discard()
    handle.discard()
    with pytest.raises(ProcessLookupError):
        os.kill(handle.pid, 0)
