"""What an elastic job's Spark task does before it has a worker, and how it makes keys of the driver's shares."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from spark_estimator.collectives import launcher_link
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, new_job_id, new_key
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import ResultRow, manifests_of
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec, job_key
from spark_estimator.launch.spark.elastic_task import ElasticTask, TaskAgent

TOKEN = b"t" * 32


def test_a_task_that_cannot_reach_the_driver_returns_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    job = JobSpec("0" * 16, 1, "f()", channel=ChannelAddress("127.0.0.1", port, b"k" * 32))
    (batch,) = ElasticTask(job, 0)(iter(()))
    assert "cannot reach the driver at 127.0.0.1" in batch.column("data")[0].as_py().decode()


def test_an_executor_with_another_package_is_refused() -> None:
    job = JobSpec(
        "0" * 16, 1, "f()", channel=ChannelAddress("127.0.0.1", 1, TOKEN), versions={"spark_estimator": "0.0.7"}
    )
    (batch,) = ElasticTask(job, 0)(iter(()))
    row = ResultRow(*(column[0].as_py() for column in batch.columns))
    (manifest,) = manifests_of([row])
    assert manifest.failure is not None and "but the driver runs 0.0.7" in manifest.failure.message


@pytest.fixture
def agent() -> TaskAgent:
    read, write = os.pipe()
    os.close(read)
    link = AgentLink(write, os.dup(write), timedelta(0), timedelta(0))
    return TaskAgent(link, JobSpec("job", 1, "f()", payload=b"payload"), "127.0.0.1", TOKEN)


def test_a_key_is_made_of_the_share_and_the_token(agent: TaskAgent) -> None:
    sent = Rendezvous(new_job_id(), new_key(), 0, (PeerFacts(0, "host", "id", "127.0.0.1", 1),), -1)
    expected = replace(sent, key=job_key([sent.key], TOKEN, sent.job_id))
    assert agent.completed(sent) == expected and expected.key != sent.key

    frames = [{"kind": launcher_link.UPDATED}, {"kind": launcher_link.ROUND, "rendezvous": sent.to_json()}]
    received = b"".join(map(launcher_link.pack, frames))
    passed = bytearray(agent.passed_down(received[:-3]))
    assert launcher_link.take(passed) == frames[0] and not passed, "the second is not whole yet"
    passed += agent.passed_down(received[-3:])
    message = launcher_link.take(passed)
    assert message is not None and Rendezvous.from_json(message["rendezvous"]) == expected


def test_the_value_stays_with_the_task(agent: TaskAgent) -> None:
    outcome = Outcome(0, "host", 10, 0, None, b"value", "hash")
    agent.hand_over(0, outcome)
    assert agent.outcome is outcome, "Spark brings it to the driver"
    assert json.loads(json.dumps(agent.order.__dict__))["payload_bytes"] == len(b"payload")
