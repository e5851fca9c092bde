"""Processes that a worker has started are found by their mark, whatever they are about to become."""

from __future__ import annotations

import os
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
            marks = orphans._marks(process.pid)
            process.kill()
        assert marks is None or mark in marks
        unknown += marks is None
        assert orphans._marks(process.pid) == b"", "it has ended"
    print(f"{unknown} of 300 were looked at in the midst")
    orphans.end(mark.decode())


def test_an_empty_environment_is_known_as_such() -> None:
    with subprocess.Popen(["sleep", "1000"], env={}) as process:
        while orphans._marks(process.pid) is None:
            pass
        orphans.end("no such mark")
        assert process.poll() is None
        process.kill()


def test_a_mark_whose_processes_are_not_all_ended_yet_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt `end`; what its handler then ends are all marks that are given."""
    mark = orphans.mark({})

    def interrupted() -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(orphans, "_processes", interrupted)
        orphans.end(mark)
    assert mark in orphans._live_marks
    orphans.end(mark)
    assert mark not in orphans._live_marks
