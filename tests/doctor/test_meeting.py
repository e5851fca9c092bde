"""Connections between executors, and memory between two tasks of a host."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from spark_estimator.doctor.meeting import Meeting, choose_callers, choose_sharers


def facts(executor: str, host: str, port: int = 1) -> dict[str, Any]:
    return {"executor": executor, "host_id": host, "port": port, "local_name": "x" * port}


def test_one_task_stands_for_each_executor_and_two_of_each_host_share_memory() -> None:
    everyone = [facts("a", "h"), facts("a", "h"), facts("b", "h"), facts("c", "i"), {"executor": "d"}]
    assert choose_callers(everyone) == {"a": 0, "b": 2, "c": 3}
    assert choose_sharers(everyone) == [(0, 2)]
    assert choose_sharers(everyone[:2]) == [(0, 1)]
    assert choose_callers([{"executor": "d"}]) == {}


@pytest.fixture
def meetings() -> Iterator[list[Meeting]]:
    key = b"k" * 32
    made = [Meeting(f"127.0.0.1:{number}", key, 5.0) for number in range(2)]
    made.append(Meeting("127.0.0.1:2", b"z" * 32, 5.0))
    yield made
    for meeting in made:
        meeting.close()


def test_executors_that_cannot_be_reached_are_named(meetings: list[Meeting]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    everyone = [meeting.facts for meeting in meetings]
    everyone.append({**everyone[0], "executor": "gone:1", "port": closed, "host_id": "other"})
    outcome = meetings[0].meet(everyone, 0)
    assert outcome["reached"] == ["127.0.0.1:1"]
    assert set(outcome["unreached"]) == {"127.0.0.1:2", "gone:1"}
    assert "127.0.0.1 port" in outcome["unreached"]["127.0.0.1:2"], "it holds another key"
    assert f"127.0.0.1 port {closed}: " in outcome["unreached"]["gone:1"]
    assert outcome["shared"] is None, "the other one takes the segment"
    assert json.loads(json.dumps(outcome)) == outcome


def test_a_segment_is_passed_and_written_to(meetings: list[Meeting]) -> None:
    outcome = meetings[1].meet([meeting.facts for meeting in meetings[:2]], 1)
    assert (outcome["shared"], outcome["sharing_trouble"]) == (True, "")
    outcome = meetings[1].meet([meetings[2].facts, meetings[1].facts], 1)
    assert outcome["shared"] is False and "AuthenticationError" in outcome["sharing_trouble"]
