"""The launcher's processes on this host are counted; those that have ended are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

# Starts ranks, and lets the first check the others on its host until they raise, or all have been there for a second.
LAUNCHER = """
import json, os, subprocess, sys
more = json.loads(sys.argv[1])
def start(rank, words):
    variables = {"TORCHELASTIC_RUN_ID": "x", "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    return subprocess.Popen(words, env=os.environ | variables, stdin=subprocess.PIPE)
others = [start(rank + 1, words) for rank, words in enumerate(more)]
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
checker = start(0, [sys.executable, "-c", sys.argv[2]])
status = checker.wait()
for process in [*others, helper]:
    process.kill()
    process.wait()
sys.exit(status)
"""
CHECKER = """
import time
from spark_estimator.collectives.other_launchers.launchers import find_foreign_job
from spark_estimator.collectives.other_launchers import local_processes as module
module._CERTAIN_SECONDS = 0.5
processes = module.LocalProcesses(find_foreign_job())
end = time.monotonic() + 1
try:
    while time.monotonic() < end:
        processes.check()
        time.sleep(0.1)
    print("all are there")
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([["cat"], ["sh", "-c", "cat; true"]], "all are there"),
        ([["cat"], ["true"]], "runs only 2 of the 3 processes on host "),
        # One without an environment may be a rank.
        ([["cat"], ["env", "-i", "cat"]], "all are there"),
    ],
)
def test_processes_that_have_ended_are_noticed(others: Sequence[Sequence[str]], text: str) -> None:
    command = [sys.executable, "-c", LAUNCHER, json.dumps(others), CHECKER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert text in done.stdout
    if "only" in text:
        assert ": rank 2 is not among them. Either" in done.stdout and "WORLD_SIZE=3 is not the number" in done.stdout
