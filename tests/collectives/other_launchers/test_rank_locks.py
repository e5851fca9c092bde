"""Processes on a host see which of them has which rank of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_estimator.collectives.other_launchers.rank_locks import RankLocks

HOLDER = """
import sys
from spark_estimator.collectives.other_launchers.rank_locks import RankLocks
locks = RankLocks(sys.argv[1], "job")
print(locks.acquire(1), flush=True)
sys.stdin.read()
"""


def test_a_rank_is_locked_by_one_process_until_it_ends(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=pipe, stdout=pipe, text=True)
    with other:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        here, another_job = RankLocks(str(tmp_path), "job"), RankLocks(str(tmp_path), "job 2")
        assert not here.acquire(1) and here.find_holder(1) == other.pid
        assert here.acquire(0) and here.find_holder(0) == 0
        assert another_job.acquire(1)
        other.kill()
        other.wait()
        assert here.find_holder(1) == 0 and here.acquire(1) and here.acquire(1)
    here.release()
    here.release()
    assert here.acquire(1), "without the file there is nothing that could be locked twice"


def test_without_a_folder_nothing_is_locked(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path / "missing")):
        locks = RankLocks(folder, "job")
        assert locks.acquire(0) and locks.find_holder(0) == 0
