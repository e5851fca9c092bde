"""The processes of ranks on this host."""

from __future__ import annotations

import os
import subprocess
import sys

from spark_estimator.env import JOB_VARIABLE, PROCESS_VARIABLE
from spark_estimator.observe.rank_processes import list_ranks


def start(mark: str) -> subprocess.Popen[bytes]:
    variables = {JOB_VARIABLE: "0123456789abcdef", PROCESS_VARIABLE: mark}
    program = [sys.executable, "-c", "input()"]
    return subprocess.Popen(program, env={**os.environ, **variables}, stdin=subprocess.PIPE)


def test_a_process_that_ranks_are_forked_from_is_none() -> None:
    with start("/" + "7" * 16) as rank, start("0" * 17) as server:
        pids = {process.pid for process in list_ranks()}
        assert rank.pid in pids and server.pid not in pids
        for process in (rank, server):
            process.communicate(b"\n")
