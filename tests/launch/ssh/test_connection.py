"""The launcher's end of its talk with an agent. A script in place of ssh runs the agent on this host."""

from __future__ import annotations

import json
import os
import platform
import queue
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import __version__
from spark_estimator.env import Settings
from spark_estimator.errors import PreflightError, PythonEnvironmentError
from spark_estimator.launch.job.events import EventRelay, Failed
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.connection import HostConnection

# Its last argument is the command for the other host.
LOCAL = 'for command; do :; done\nexec sh -c "$command"'
GREETING = """printf '\\000spark_estimator agent\\nh\\000\\000\\000\\{length:03o}{text}'; cat > /dev/null"""

Connect = Callable[..., HostConnection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Connects to a host by a program."""
    connections: list[HostConnection] = []

    def to(program: str, interfaces: tuple[str, ...] = ()) -> HostConnection:
        script = tmp_path / "ssh"
        script.write_text(f"#!/bin/sh\n{program}\n")
        script.chmod(0o755)
        options = SshOptions(ssh=(str(script),), interfaces=interfaces, settings=Settings.read({}))
        connections.append(HostConnection("alpha", options))
        return connections[-1]

    yield to
    for connection in connections:
        connection.close()


def test_an_agent_that_answers_without_end_is_cut(connect: Connect) -> None:
    text = json.dumps({"problem": ""})
    answers = f"while :; do printf 'y\\000\\000\\000\\{len(text):03o}{text}'; done"
    connection = connect(greeting().replace("cat > /dev/null", answers))
    connection._reading[1].join(60)
    assert not connection._reading[1].is_alive() and "answers that were not asked for" in connection.lost


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_an_agent_whose_frame_is_nested_without_end_is_lost(connect: Connect, opening: str) -> None:
    """The thread that reads it would end without a word, and the launcher would wait for the agent for ever."""
    content = opening * 50_000
    size = "".join(f"\\{byte:03o}" for byte in len(content).to_bytes(4, "big"))
    repeated = f"yes '{opening}' | head -n 50000 | tr -d '\\n'"
    connection = connect(f"printf '\\000spark_estimator agent\\nh{size}'; {repeated}; cat > /dev/null")
    worker = connection.make_worker_handle(0, 0, EventRelay(queue.Queue()))
    with pytest.raises(PreflightError, match=r"its supervisor sent invalid data: .*nested too deeply"):
        connection.wait_for_greeting(soon())
    assert "nested too deeply" in connection.lost and worker.over


def test_an_agent_whose_errors_never_end_their_line_is_read_in_pieces(connect: Connect) -> None:
    connection = connect("head -c 1000000 /dev/zero | tr '\\0' x >&2")
    connection._reading[0].join(60)
    assert len(connection._tail) > 1 and max(map(len, connection._tail)) <= 16 << 10


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def greeting(**changes: str) -> str:
    """A program that greets as an agent of another host does."""
    fields = {"package": __version__, "python": platform.python_version(), "executable": "/remote/python", **changes}
    text = json.dumps(fields)
    return GREETING.format(length=len(text), text=text)


def test_an_agent_greets_prepares_and_ends_with_the_connection(connect: Connect) -> None:
    connection = connect(LOCAL, ("lo",))
    assert connection.wait_for_greeting(soon())["package"] == __version__
    connection.prepare(JobSpec("job", 1, "work()"), 1, timedelta(0), soon())
    assert (connection.address, connection.lost) == ("127.0.0.1", "")
    connection.close()
    connection.close()
    with pytest.raises(ProcessLookupError):
        os.kill(connection.pid, 0)


def test_a_problem_of_the_host_is_an_error(connect: Connect) -> None:
    connection = connect(LOCAL, ("ib7",))
    connection.wait_for_greeting(soon())
    with pytest.raises(PreflightError, match="it has no address on any of the network interfaces ib7"):
        connection.prepare(JobSpec("job", 1, "work()"), 1, timedelta(0), soon())


def test_other_versions_are_refused(connect: Connect) -> None:
    with pytest.raises(PythonEnvironmentError, match=r"/remote/python has spark_estimator 0\.0\.7, but this host has"):
        connect(greeting(package="0.0.7")).wait_for_greeting(soon())
    with pytest.raises(PythonEnvironmentError, match=r"/remote/python is Python 3\.2\.1, but this host has"):
        connect(greeting(python="3.2.1")).wait_for_greeting(soon())


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            "echo 'Connection refused' >&2; exit 255",
            r"ssh to it failed: Connection refused\. To fix it: is the host up",
        ),
        ("exit 255", r"ssh to it, or its supervisor there, was killed\.\n"),
        ("kill -9 $$", r"ssh to it was killed by signal 9 \(SIGKILL\)\.\n"),
        ("echo 'strange' >&2; exit 3", r"its supervisor there ended with exit status 3: strange\.\n"),
        ("printf '\\000spark_estimator agent\\nSegmentation fault'; sleep 9", "its supervisor sent invalid data"),
    ],
)
def test_a_host_that_cannot_be_reached_is_explained(connect: Connect, program: str, text: str) -> None:
    connection = connect(program)
    with pytest.raises(PreflightError, match=text):
        connection.wait_for_greeting(soon())
    assert connection.lost


def test_a_host_that_does_not_answer_is_an_error_with_its_last_output(connect: Connect) -> None:
    connection = connect("echo 'is it me?' >&2; exec sleep 1000")
    time.sleep(0.2)
    with pytest.raises(
        PreflightError, match=r"did not answer within \d+ seconds; its last output: is it me\?\. Is the"
    ):
        connection.wait_for_greeting(soon(0.3))
    connection.cut()


def test_a_worker_of_a_lost_host_is_lost(connect: Connect) -> None:
    events: queue.Queue[Any] = queue.Queue()
    connection = connect(greeting().replace("cat > /dev/null", "exit 3"))
    handle = connection.make_worker_handle(0, 2, EventRelay(events))
    outcome = handle.start()
    assert isinstance(outcome, Outcome) and outcome.failure is not None and outcome.failure.rank == 2
    event = events.get(timeout=10)
    assert isinstance(event, Failed) and "is out of contact: its supervisor there ended with" in event.report.message
