"""Processes that a worker has started are found by their mark, also during an exec."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys

import pytest

from spark_estimator.launch.worker import orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def test_a_process_that_has_just_become_another_program_is_not_overlooked() -> None:
    """In the midst of execve its environment reads as empty, which one look in ten sees right after Popen."""
    environment = dict(os.environ)
    mark = orphans.mark(environment).encode()
    unknown = 0
    for _ in range(300):
        with subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True) as process:
            marks = orphans._read_marks(process.pid)
            process.kill()
        assert marks is None or mark in marks
        unknown += marks is None
        assert orphans._read_marks(process.pid) == b"", "it has ended"
    print(f"{unknown} of 300 were looked at in the midst")
    orphans.end_marked(mark.decode())


def test_an_empty_environment_is_known_as_such() -> None:
    with subprocess.Popen(["sleep", "1000"], env={}) as process:
        while orphans._read_marks(process.pid) is None:
            pass
        orphans.end_marked("no such mark")
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("pidfd", [True, False])
def test_only_the_process_that_has_the_mark_is_killed(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process gets the number of one that had it, between the look and the signal."""
    environment = dict(os.environ)
    mark = orphans.mark(environment)
    looks: collections.Counter[int] = collections.Counter()
    look = orphans._read_marks

    def looked_at_before_it_ended(pid: int) -> bytes | None:
        looks[pid] += 1
        return mark.encode() if pid == other.pid and looks[pid] == 1 else look(pid)

    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(orphans, "_read_marks", looked_at_before_it_ended)
    with (
        subprocess.Popen(["sleep", "1000"]) as other,
        subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True) as marked,
    ):
        orphans.end_marked(mark)
        assert marked.wait(20) == -signal.SIGKILL
        assert looks[other.pid] > 0 and other.poll() is None
        other.kill()
        assert other.wait(20) == -signal.SIGKILL


def test_the_signal_goes_to_the_process_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends after the look, and whose number another gets at once, is not mistaken for that other."""
    environment = dict(os.environ)
    mark = orphans.mark(environment)
    look = orphans._read_marks
    ended: list[int] = []

    def ended_after_the_look(pid: int) -> bytes | None:
        marks = look(pid)
        if pid == marked.pid and marks and opened:
            marked.kill()
            marked.wait(20)
            ended.append(pid)
        return marks

    opened: list[int] = []
    pidfd_open = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: opened.append(pid) or pidfd_open(pid))
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail(f"signal {number} by number {pid}"))
    monkeypatch.setattr(orphans, "_read_marks", ended_after_the_look)
    with subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True) as marked:
        monkeypatch.setattr(marked, "send_signal", lambda number: signal.pidfd_send_signal(number_of, number))
        number_of = pidfd_open(marked.pid)
        orphans.end_marked(mark)
        os.close(number_of)
    assert ended == [marked.pid] == opened


def test_a_mark_whose_processes_are_not_all_ended_yet_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt `end`; its handler then ends all marks."""
    mark = orphans.mark({})

    def interrupted() -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(orphans, "_list_processes", interrupted)
        orphans.end_marked(mark)
    assert mark in orphans._live_marks
    orphans.end_marked(mark)
    assert mark not in orphans._live_marks
