"""Processes on a host see which of them has which rank of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_estimator.collectives.foreign.claims import Claims

HOLDER = """
import sys
from spark_estimator.collectives.foreign.claims import Claims
claims = Claims(sys.argv[1], "job")
print(claims.claim(1), flush=True)
sys.stdin.read()
"""


def test_a_rank_is_claimed_by_one_process_until_it_ends(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=pipe, stdout=pipe, text=True)
    with other:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        here, another_job = Claims(str(tmp_path), "job"), Claims(str(tmp_path), "job 2")
        assert not here.claim(1) and here.holder(1) == other.pid
        assert here.claim(0) and here.holder(0) == 0
        assert another_job.claim(1)
        other.kill()
        other.wait()
        assert here.holder(1) == 0 and here.claim(1) and here.claim(1)
    here.release()
    here.release()
    assert here.claim(1), "without the file there is nothing that could be claimed twice"


def test_without_a_folder_nothing_is_claimed(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path / "missing")):
        claims = Claims(folder, "job")
        assert claims.claim(0) and claims.holder(0) == 0
