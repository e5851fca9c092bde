"""A host agent: what it reports of its host, and the orders that it carries out, over real pipes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.agent import HostAgent, HostOrder, find_address, pack_job, unpack_job
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.spec import JobSpec

JOB = JobSpec("job", 2, "train()", payload=b"secret", environment={"A": "1"}, preload=("json",))


def test_a_job_travels_without_its_payload() -> None:
    fields = json.loads(json.dumps(pack_job(JOB)))
    assert "payload" not in fields and "channel" not in fields
    assert unpack_job({**fields, "payload": b"secret"}) == JOB


def test_the_address_is_that_of_the_first_interface_that_exists() -> None:
    assert find_address(["ib7", "lo"], "192.0.2.2") == "127.0.0.1"
    assert find_address([], "192.0.2.2") == "192.0.2.2"
    with pytest.raises(OSError, match=r"no address on any of the network interfaces ib7, ib8; .*\blo\b"):
        find_address(["ib7", "ib8"], "192.0.2.2")


class Talk:
    """An agent in a thread, and the launcher's end of its link."""

    def __init__(self) -> None:
        down, up = os.pipe(), os.pipe()
        zero = timedelta(0)
        self.launcher = AgentLink(up[0], down[1], zero, zero)
        self.agent = HostAgent(AgentLink(down[0], up[1], zero, zero))
        self.thread = threading.Thread(target=self.agent.run, daemon=True)
        self.thread.start()
        self.received = self.launcher.read_frames()
        self.sources = down[0], up[0]

    def next(self, letter: bytes) -> dict[str, Any]:
        """The next frame, which must be of that kind."""
        got, content = next(self.received)
        assert got == letter, content
        fields: dict[str, Any] = json.loads(content)
        return fields

    def prepare(self, job: JobSpec, folder: str, *interfaces: str) -> dict[str, Any]:
        order = HostOrder("alpha", folder, 1, interfaces, 0.0, len(job.payload))
        self.launcher.send_json(frames.JOB, job=pack_job(job), order=asdict(order))
        return self.next(frames.READY)

    def close(self) -> None:
        self.launcher.close(timedelta(seconds=20))
        self.thread.join(20)
        assert not self.thread.is_alive(), "the agent ends with its input"
        for descriptor in self.sources:
            os.close(descriptor)


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    assert talk.next(frames.HELLO)["package"] == __version__
    yield talk
    talk.close()


def test_a_worker_is_started_run_and_its_value_sent(talk: Talk) -> None:
    payload = cloudpickle.dumps((lambda: os.environ["A"], (), {}))
    job = JobSpec("job", 1, "work()", payload=payload, environment={"A": "1"})
    assert talk.prepare(job, os.getcwd(), "lo") == {"address": "127.0.0.1", "note": "", "problem": ""}
    talk.launcher.send_bytes(frames.PAYLOAD, 0, payload)
    talk.launcher.send_json(frames.START, process=5, linked=False)
    started = talk.next(frames.STARTED)
    facts = PeerFacts(**started["facts"])
    rendezvous = Rendezvous(make_job_id(), make_key(), 0, (facts,), -1)
    talk.launcher.send_json(frames.RUN, process=5, rendezvous=rendezvous.to_json())
    assert talk.next(frames.BEGUN)["pid"] == facts.pid
    letter, content = next(talk.received)
    number, value = frames.split_process(content)
    assert (letter, number, cloudpickle.loads(value)) == (frames.VALUE, 5, "1")
    outcome = talk.next(frames.OUTCOME)
    assert (outcome["process"], outcome["failure"], outcome["bytes"]) == (5, None, len(value))


def test_a_worker_that_is_not_needed_is_stopped(talk: Talk) -> None:
    talk.prepare(JobSpec("job", 1, "work()"), os.getcwd(), "lo")
    talk.launcher.send_json(frames.START, process=5, linked=True)
    talk.next(frames.STARTED)
    talk.launcher.send_json(frames.STOP, process=5, reason="because of a test", at_once=True)
    failure = talk.next(frames.OUTCOME)["failure"]
    assert (failure["host"], failure["kind"]) == ("alpha", failures.STOPPED)
    assert failure["message"] == "was stopped because of a test"


def test_a_host_that_cannot_run_the_job_reports_the_problem(talk: Talk) -> None:
    answer = talk.prepare(JobSpec("job", 1, "true", command=("true",)), "/missing/folder")
    assert "the launcher's working directory /missing/folder doesn't exist there" in answer["problem"]
    assert "put it on a shared file system" in answer["problem"]
    assert "network interfaces ib7" in talk.prepare(JobSpec("job", 1, "work()"), os.getcwd(), "ib7")["problem"]
    answer = talk.prepare(JobSpec("job", 1, "work()"), "/missing/folder", "lo")
    assert answer["problem"] == "" and f"its ranks start in {os.getcwd()}" in answer["note"]


def test_more_of_a_payload_than_was_announced_is_refused(talk: Talk, capfd: pytest.CaptureFixture[str]) -> None:
    talk.prepare(JobSpec("job", 1, "work()", payload=b"1234"), os.getcwd(), "lo")
    talk.launcher.send_bytes(frames.PAYLOAD, 0, b"12")
    talk.launcher.send_bytes(frames.PAYLOAD, 0, b"345")
    talk.thread.join(20)
    assert "a payload of more than 4 bytes" in capfd.readouterr().err


def test_an_unknown_order_ends_the_agent(talk: Talk, capfd: pytest.CaptureFixture[str]) -> None:
    talk.launcher.send_json(b"?")
    talk.thread.join(20)
    refusal = "because its host got an invalid order from the launcher: unknown order b'?' is refused"
    assert refusal in capfd.readouterr().err
