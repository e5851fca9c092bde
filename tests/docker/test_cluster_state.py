"""The state file is checked against the processes that run, and no process of a cluster is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cluster_state
import pytest
from cluster_state import Condition, Process, State


def sleeper(folder: Path, program: str = "import time; time.sleep(100)") -> tuple[subprocess.Popen[bytes], Process]:
    env = {**os.environ, cluster_state.MARK: str(folder)}
    child = subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True)
    return child, Process("sleeper", child.pid, cluster_state.start_time(child.pid) or 0, "no.log")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], Process]]]:
    children = [sleeper(tmp_path) for _ in range(2)]
    yield children
    for child, _ in children:
        child.kill()
        child.wait()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = State("processes", processes=[Process("master", 1, 2, "x.log")], addresses={"master": "spark://x:1"})
    state.write(tmp_path / "state.json")
    assert cluster_state.read(tmp_path / "state.json") == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"variant": "processes", "processes": [{"pid": 1}]}', '{"x": 1}'])
def test_another_file_is_no_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert cluster_state.read(tmp_path / "state.json") is None
    assert cluster_state.read(tmp_path / "absent.json") is None


def test_the_condition_follows_the_processes(two: list[tuple[subprocess.Popen[bytes], Process]]) -> None:
    state = State("processes", processes=[process for _, process in two])
    assert state.condition() is Condition.RUNNING
    two[0][0].kill()
    two[0][0].wait()
    assert state.condition() is Condition.BROKEN
    two[1][0].kill()
    two[1][0].wait()
    assert state.condition() is Condition.ABSENT


def test_another_process_with_the_same_pid_is_not_the_daemon() -> None:
    mine = cluster_state.start_time(os.getpid())
    assert mine is not None
    assert Process("x", os.getpid(), mine, "").is_alive()
    assert not Process("x", os.getpid(), mine - 1, "").is_alive()


def test_all_that_the_daemons_have_started_is_killed(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
        "time.sleep(100)\n"
    )
    child, process = sleeper(tmp_path, program)
    other, _ = sleeper(tmp_path / "other")
    try:
        deadline = time.monotonic() + 30
        while len(cluster_state.marked(tmp_path)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        cluster_state.end([process], seconds=5)
        assert not process.is_alive()
        assert len(cluster_state.marked(tmp_path)) == 1
        assert cluster_state.kill_marked(tmp_path) == []
        assert cluster_state.marked(tmp_path) == []
        assert other.poll() is None, "a process of another cluster lives on"
    finally:
        for process_object in (child, other):
            process_object.kill()
            process_object.wait()


def test_a_daemon_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = f"import signal, time; signal.signal(15, 1); open({str(ready)!r}, 'w'); time.sleep(100)"
    _, process = sleeper(tmp_path, program)
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cluster_state.end([process], seconds=0.2)
    assert not process.is_alive()
