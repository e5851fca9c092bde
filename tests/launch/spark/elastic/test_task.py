"""What an elastic job's Spark task does before it has a worker, and how it makes keys of the driver's shares."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyspark")

from spark_estimator.collectives import launcher_link
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import ResultRow, read_manifests
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec, derive_job_key
from spark_estimator.launch.spark.elastic.task import ElasticTask, TaskAgent, pin_own_gpus
from spark_estimator.launch.spark.task_secrecy import Parcel, Parcels
from spark_estimator.security.handshake_server import HandshakeServer

TOKEN = b"t" * 32


def test_a_task_that_cannot_reach_the_driver_returns_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    job = JobSpec("0" * 16, 1, "f()", channel=ChannelAddress("127.0.0.1", port, b"k" * 32))
    (batch,) = ElasticTask(job, 0, Parcels(Parcel(job.payload)))(iter(()))
    assert "cannot reach the driver at 127.0.0.1" in batch.column("data")[0].as_py().decode()


def test_an_executor_with_another_package_is_refused() -> None:
    job = JobSpec(
        "0" * 16, 1, "f()", channel=ChannelAddress("127.0.0.1", 1, TOKEN), versions={"spark_estimator": "0.0.7"}
    )
    (batch,) = ElasticTask(job, 0, Parcels(Parcel(job.payload)))(iter(()))
    row = ResultRow(*(column[0].as_py() for column in batch.columns))
    (manifest,) = read_manifests([row])
    assert manifest.failure is not None and "but the driver runs 0.0.7" in manifest.failure.message


@dataclass
class Resources:
    """A task's context."""

    addresses: tuple[str, ...]

    def resources(self) -> dict[str, Any]:
        return {"gpu": self, "fpga": None} if self.addresses else {}


@pytest.mark.parametrize(
    ("addresses", "environ", "expected"),
    [
        ((), {}, {}),
        (("1",), {}, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (("1",), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        # A cluster manager's list, in which Spark's addresses count.
        (("1", "0"), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}),
    ],
)
def test_a_worker_sees_the_gpus_of_its_task(
    addresses: tuple[str, ...], environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert pin_own_gpus(Resources(addresses), environ) == expected  # type: ignore[arg-type]
    assert pin_own_gpus(None, environ) == {}


@pytest.fixture
def agent() -> TaskAgent:
    read, write = os.pipe()
    os.close(read)
    link = AgentLink(write, os.dup(write), timedelta(0), timedelta(0))
    return TaskAgent(link, JobSpec("job", 1, "f()", payload=b"payload"), "127.0.0.1", TOKEN)


def test_a_key_is_made_of_the_share_and_the_token(agent: TaskAgent) -> None:
    sent = Rendezvous(make_job_id(), make_key(), 0, (PeerFacts(0, "host", "id", "127.0.0.1", 1),), -1)
    expected = replace(sent, key=derive_job_key([sent.key], TOKEN, sent.job_id))
    assert agent.complete(sent) == expected and expected.key != sent.key

    messages = [{"kind": launcher_link.UPDATED}, {"kind": launcher_link.ROUND, "rendezvous": sent.to_json()}]
    received = b"".join(map(launcher_link.pack, messages))
    passed = bytearray(agent.translate_relayed(received[:-3]))
    assert launcher_link.take(passed) == messages[0] and not passed, "the second is not whole yet"
    passed += agent.translate_relayed(received[-3:])
    message = launcher_link.take(passed)
    assert message is not None and Rendezvous.from_json(message["rendezvous"]) == expected


def test_the_value_stays_with_the_task(agent: TaskAgent) -> None:
    outcome = Outcome(0, "host", 10, 0, None, b"value", "hash")
    agent.hand_over(0, outcome)
    assert agent.outcome is outcome, "Spark brings it to the driver"


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


HOST_ORDER = {"name": "a", "folder": "/", "slots": 1, "interfaces": ["lo"], "gentle_seconds": 0.0}


@pytest.mark.usefixtures("spark")  # a task has a folder of Spark's files
@pytest.mark.timeout(120)
@pytest.mark.parametrize("hostile", ["command", "payload", "environment of a start", "environment of a rank"])
def test_a_driver_that_knows_the_token_cannot_have_a_task_run_anything_else(
    hostile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is refused by name, and ends the task, also when orders follow that would start a worker."""
    executed = tmp_path / "executed"
    listener = socket.create_server(("127.0.0.1", 0))
    tasks: queue.Queue[socket.socket] = queue.Queue()
    server = HandshakeServer(
        [listener], TOKEN, lambda sock, *_: tasks.put(sock), approve=lambda context: None, name="hostile"
    )
    address = ChannelAddress(*listener.getsockname()[:2], TOKEN)
    job = JobSpec("0" * 16, 1, "f()", payload=cloudpickle.dumps((len, (bytes(4096),), {})), channel=address)
    rows: list[Any] = []
    task = threading.Thread(target=lambda: rows.extend(ElasticTask(job, 0, Parcels(Parcel(job.payload)))(iter(()))))
    task.start()
    with tasks.get(timeout=30) as sock:
        sock.settimeout(None)
        link = AgentLink(sock.fileno(), os.dup(sock.fileno()), timedelta(0), timedelta(0))
        start: dict[str, Any] = {"process": 0, "linked": False}
        rank: dict[str, Any] = {}
        evil = {"BASH_ENV": str(executed), "PYTHONPATH": str(tmp_path)}
        if hostile == "command":
            command = {"job_id": job.job_id, "size": 1, "function": "f()", "command": ["touch", str(executed)]}
            link.send_json(frames.JOB, job=command, order={**HOST_ORDER, "payload_bytes": 0})
        elif hostile == "payload":
            link.send_bytes(frames.PAYLOAD, 0, pickle.dumps((Touch(executed), (), {})).ljust(len(job.payload), b"."))
        elif hostile == "environment of a start":
            start["environment"] = evil
        else:
            rank["environment"] = evil
        link.send_json(frames.START, **start)
        peer = PeerFacts(0, "host", "id", "127.0.0.1", 1)
        rendezvous = Rendezvous(job.job_id, make_key(), 0, (peer,), -1)
        link.send_json(frames.RUN, process=0, rendezvous=rendezvous.to_json(), **rank)
        task.join(60)
        ended = not task.is_alive()
        link.give_up()
        with contextlib.suppress(OSError):  # the task has closed its end
            sock.shutdown(socket.SHUT_RDWR)
    task.join(60)
    server.close()
    assert not executed.exists()
    order = {"command": "JOB", "payload": "PAYLOAD", "environment of a start": "START"}.get(hostile, "RUN")
    assert f"order {order} is refused" in capfd.readouterr().err
    assert ended, "the task waits for no more orders"
    for manifest in read_manifests([ResultRow(*(column[0].as_py() for column in batch.columns)) for batch in rows]):
        assert manifest.failure is not None and f"order {order} is refused" in manifest.failure.message
