"""Programs that start jobs in a world that is not as it should be: descriptors closed, SIGCHLD ignored, ASCII only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.launch import clusters

SHOWS = "import os; print('rank', os.environ['HOROVOD_RANK'], 'ü →', flush=True); open(os.environ['HOROVOD_RANK'], 'w')"


def shell(line: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    run = f'"{sys.executable}" -m spark_estimator.launch.cli.main'
    return subprocess.run(
        ["bash", "-c", line.replace("horovodrun", run)],
        cwd=folder,
        env=clusters.environment(SHOWS=SHOWS, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_a_job_runs_where_descriptors_are_closed(closed: str, tmp_path: Path) -> None:
    done = shell(f'horovodrun -np 2 "{sys.executable}" -c "$SHOWS" {closed}', tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    if "1>&-" not in closed:
        assert "[1]<stdout>:rank 1 ü →" in done.stdout


def test_a_screen_that_knows_ascii_only_and_a_sigchld_that_is_ignored(tmp_path: Path) -> None:
    line = f"trap '' CHLD; exec horovodrun -np 2 env PYTHONIOENCODING=utf-8 '{sys.executable}' -c \"$SHOWS; exit(3)\""
    done = shell(line, tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 3, "the exit status of the rank is known all the same"
    assert r"[1]<stdout>:rank 1 \xfc \u2192" in done.stdout, done.stderr


PROGRAM = """
import json, os, signal, subprocess, sys, time
from spark_estimator import HorovodRunner
from spark_estimator.collectives import context

def starts(how):
    context.init()
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sleep 1000 &"])
    if how == "exit" and context.rank() == 1:
        os._exit(3)
    while how == "exit":
        time.sleep(1)
    return "file " + os.fsdecode(b"\\xe9") if how == "name" else how

def found(how):
    os.environ["SPARK_ESTIMATOR_TEST_MARKER"] = sys.argv[1]
    try:
        value = HorovodRunner(np=-2).run(starts, how=how)
    except Exception as error:
        value = f"{type(error).__name__} {error.rank} {error}"
    del os.environ["SPARK_ESTIMATOR_TEST_MARKER"]
    from tests.launch import clusters
    clusters.wait_until_gone("SPARK_ESTIMATOR_TEST_MARKER=" + sys.argv[1], 5)
    return value

told = {"value": found("value")}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
told["ignored"] = found("ignored")
told["exit, ignored"] = found("exit")
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
told["reaped"] = found("reaped")
print(json.dumps(told))
"""


@pytest.mark.timeout(120)
def test_whatever_becomes_of_sigchld_and_wherever_a_rank_s_children_go(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, uuid.uuid4().hex],
        cwd=tmp_path,
        env=clusters.environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["value"] == "value" and results["ignored"] == "ignored" and results["reaped"] == "reaped"
    assert results["exit, ignored"].startswith("WorkerFailedError 1 rank 1 (host ")
    assert "because this program ignores SIGCHLD or reaps all of its child processes" in results["exit, ignored"]


def test_names_of_files_that_are_no_utf_8_can_be_printed() -> None:
    from spark_estimator.observe.driver_log import printable

    assert printable(os.fsdecode(b"caf\xe9\x1b")) == r"caf\udce9\x1b"
    printable(os.fsdecode(b"\xff")).encode()
