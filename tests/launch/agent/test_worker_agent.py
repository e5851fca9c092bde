"""The reports of every agent on itself and its workers, and its reaction to orders that it refuses."""

from __future__ import annotations

import json
import os
import platform
from datetime import timedelta

import pytest

from spark_estimator import __version__
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.agent.worker_agent import Program, WorkerAgent, make_hello, pack_outcome
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec


def test_an_outcome_travels_without_its_value() -> None:
    report = FailureReport(1, "host", 10, failures.RAISED, "raised KeyError")
    fields = pack_outcome(Outcome(1, "host", 10, 1, report, b"value", "hash"))
    assert FailureReport.from_dict(fields.pop("failure")) == report
    assert fields == {"rank": 1, "host": "host", "pid": 10, "exit_code": 1, "sha256": "hash"}


def test_the_hello_has_the_addresses_of_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 5000 192.0.2.2 22")
    fields = make_hello()
    assert (fields["package"], fields["python"]) == (__version__, platform.python_version())
    assert (fields["launcher_address"], fields["own_address"]) == ("192.0.2.1", "192.0.2.2")
    monkeypatch.delenv("SSH_CONNECTION")
    assert make_hello()["own_address"] == ""


class Silent(WorkerAgent):
    """The least that an agent is."""

    def hand_over(self, number: int, outcome: Outcome) -> None:
        pass


@pytest.mark.parametrize(
    ("letter", "content", "refusal"),
    [
        (frames.JOB, {"job": {"command": ["true"]}}, "order JOB is refused"),
        (frames.PAYLOAD, {}, "order PAYLOAD is refused"),
        (frames.START, {"process": 0, "linked": False, "command": ["true"]}, "order START is refused: its fields must"),
        (frames.START, ["process", "linked"], "order START is refused: its fields must"),
        (b"?", {}, "unknown order b'?' is refused"),
    ],
)
def test_an_agent_takes_no_program_from_its_launcher(
    letter: bytes, content: object, refusal: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (source, down), (up, sink) = os.pipe(), os.pipe()
    never = timedelta(0)
    program = Program(JobSpec("job", 1, "f()"), b"payload", "host", "127.0.0.1")
    agent = Silent(AgentLink(source, sink, never, never), program)
    launcher = AgentLink(up, down, never, never)
    launcher.send(letter, json.dumps(content).encode())
    agent.run()
    assert f"because its host got an invalid order from the launcher: {refusal}" in capfd.readouterr().err
    assert agent.program is program
    launcher.close(timedelta(seconds=20))
    os.close(source)
    os.close(up)
