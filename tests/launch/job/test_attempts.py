"""Jobs that are restarted, jobs that exceed their time limit, and the error of a job for programs."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.collectives.rendezvous import make_job_id
from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import (
    JobFailedError,
    JobTimeoutError,
    NotEnoughSlotsError,
    ResultError,
    WorkerFailedError,
    remove_links,
)
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.attempts import Attempt, Limits, run_attempts, to_timedelta
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.local import run_job, run_local
from tests.launch import clusters

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def end(how: str) -> None:
    """Prints something, and ends this process so."""
    print("step 7", flush=True)
    for line in [
        "the last 40 of 60 recorded operations:",
        *["allreduce"] * 40,
    ]:  # as the engine when it loses a peer
        print(line, file=sys.stderr, flush=True)
    print("a warning", file=sys.stderr, flush=True)
    if how == "raised":
        raise ValueError("boom")
    if how == "exited":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV if how == "crashed" else signal.SIGKILL)


@pytest.fixture
def marker() -> Iterator[str]:
    """A mark in the environment of everything that the test's jobs start; all of it has to have ended."""
    text = uuid.uuid4().hex
    yield text
    clusters.wait_until_gone(text, 10)


def test_a_failed_job_is_started_anew_as_a_whole(marker: str, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> tuple[int, str | None]:
        subprocess.Popen(["sleep", "1000"])
        attempt = int(os.environ["SPARK_ESTIMATOR_ATTEMPT"])
        if attempt < 3 and rank() == 1:
            end("raised" if attempt == 1 else "killed")
        if attempt < 3:
            threading.Event().wait()
        return attempt, os.environ.get("SPARK_ESTIMATOR_JOB")

    environment = {clusters.MARKER: marker, "SPARK_ESTIMATOR_ATTEMPT": "17"}
    values = run_local(work, 2, JobOptions(all_results=True, environment=environment, limits=Limits(max_restarts=5)))
    assert values[0] == values[1] and values[0][0] == 3
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("spark_estimator: ")]
    assert len(messages) == 2
    who = r"rank 1 \(host \S+, pid \d+\)"
    assert re.fullmatch(
        rf"spark_estimator: attempt 1 of 6 failed: {who} raised ValueError: boom; restarting all ranks", messages[0]
    )
    assert re.match(rf"spark_estimator: attempt 2 of 6 failed: {who} was killed by signal 9 \(SIGKILL\)", messages[1])


def test_the_last_failure_is_raised_with_the_earlier_ones() -> None:
    def work() -> None:
        end("raised" if os.environ["SPARK_ESTIMATOR_ATTEMPT"] == "1" else "exited")

    with pytest.raises(WorkerFailedError) as caught:
        HorovodRunner(np=-1, max_restarts=1).run(work)
    error = caught.value
    assert error.exitcode == 3
    text = remove_links(str(error)).splitlines()
    assert "ended with exit status 3" in text[0] and text[-2] == "This was attempt 2 of 2. Earlier attempts:"
    assert text[-1].startswith("  attempt 1: rank 0 (host ") and text[-1].endswith(" raised ValueError: boom")
    assert [(failure.kind, failure.earlier) for failure in error.earlier] == [("raised", ())]


def test_what_would_end_in_the_same_way_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = type(os)("only_on_the_driver")
    exec("def work(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_on_the_driver", module)
    with pytest.raises(WorkerFailedError, match="could not load work"):
        run_local(module.work, 1, JobOptions(limits=Limits(max_restarts=1)))
    with pytest.raises(ResultError, match="cannot be pickled"):
        run_local(lambda: threading.Lock(), 1, JobOptions(limits=Limits(max_restarts=1)))
    assert "attempt" not in capfd.readouterr().err


def test_replaced_ranks_count_as_restarts() -> None:
    replaced = iter([1, 2])
    numbers: list[int] = []

    def run(attempt: Attempt) -> None:
        numbers.append(attempt.number)
        raise WorkerFailedError("rank 0 (host a) was lost", kind="lost")

    with pytest.raises(WorkerFailedError, match="This was attempt 2 of 2"):
        run_attempts(run, Limits(3), "train()", replaced=lambda: next(replaced))
    assert numbers == [1, 2]


def test_no_room_for_the_next_attempt() -> None:
    """Reported with the failure before it."""
    recovered: list[timedelta] = []

    def run(attempt: Attempt) -> None:
        raise WorkerFailedError("rank 0 (host a) was lost", kind="lost")

    def recover(attempt: Attempt) -> None:
        recovered.append(attempt.limit_wait(timedelta(hours=1)))
        raise NotEnoughSlotsError("2 ranks need 2 slots")

    with pytest.raises(NotEnoughSlotsError) as caught:
        run_attempts(run, Limits(2, timedelta(seconds=60)), "train()", recover=recover)
    assert remove_links(str(caught.value)).splitlines() == [
        "2 ranks need 2 slots",
        "This was attempt 2 of 3. Earlier attempts:",
        "  attempt 1: rank 0 (host a) was lost",
    ]
    assert isinstance(caught.value.__cause__, WorkerFailedError) and recovered[0] <= timedelta(seconds=60)


def test_a_job_that_runs_out_of_time_is_ended(marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clusters.MARKER, marker)

    def work() -> None:
        subprocess.Popen(["sleep", "1000"])
        threading.Event().wait()

    with pytest.raises(JobTimeoutError, match=r"work\(\) on 2 ranks did not end within 4 seconds \(timeout\).*stopped"):
        HorovodRunner(np=-2, timeout=4, max_restarts=3).run(work)
    assert not clusters.processes_with(marker)


def test_an_interruption_is_no_failure(marker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(clusters.MARKER, marker)
    begun = tmp_path / "begun"

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def work() -> None:
        subprocess.Popen(["sleep", "1000"])
        begun.touch()
        threading.Event().wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt, match=r"work\(\) was interrupted; all of its ranks were stopped"):
            HorovodRunner(np=-2, max_restarts=3).run(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not clusters.processes_with(marker)


COMMAND = """
import sys
sys.path.insert(0, {folder!r})
print("step 7", flush=True)
print("a warning", file=sys.stderr, flush=True)
import os, signal
how = {how!r}
if how == "raised": raise ValueError("boom")
if how == "exited": os._exit(3)
import faulthandler
faulthandler.enable()
os.kill(os.getpid(), signal.SIGSEGV if how == "crashed" else signal.SIGKILL)
"""


@pytest.mark.parametrize("launcher", ["function", "command", "elastic"])
@pytest.mark.parametrize(
    ("how", "exitcode", "number", "traceback"),
    [
        ("raised", None, None, "ValueError: boom"),
        ("exited", 3, None, ""),
        ("killed", -9, 9, ""),
        ("crashed", -11, 11, "Fatal Python error: Segmentation fault"),
    ],
)
def test_every_launcher_fills_the_error_s_fields(
    launcher: str, how: str, exitcode: int | None, number: int | None, traceback: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        if launcher == "function":
            run_local(end, 1, JobOptions(args=(how,)))
        elif launcher == "elastic":
            run_elastic_local(end, Terms(size=1, min_size=1), JobOptions(args=(how,)))
        else:
            script = tmp_path / "train.py"
            script.write_text(COMMAND.format(how=how, folder=str(tmp_path)))
            command = (sys.executable, str(script))
            run_job(JobSpec(make_job_id(), 1, " ".join(command), command=command))
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value) and type(error) is WorkerFailedError
    if launcher == "command" and how == "raised":  # all that is seen of a command is its end
        exitcode, how = 1, "exited"
    kind = "killed" if how == "crashed" else how
    assert (error.kind, error.rank, error.exitcode, error.signal) == (kind, 0, exitcode, number)
    assert error.host == os.uname().nodename
    assert traceback in error.traceback and bool(traceback) == bool(error.traceback)
    assert {"step 7", "a warning"} <= set(error.log_tail.splitlines())
    assert "allreduce" not in error.log_tail
    assert str(caught.value.__cause__).strip(), "people see the traceback, or the last lines"


def test_an_error_without_a_culprit_has_the_same_fields() -> None:
    error = JobFailedError("Spark ended the job")
    assert (error.kind, error.rank, error.host, error.exitcode, error.signal) == ("", -1, "", None, None)
    assert (error.traceback, error.log_tail, error.earlier) == ("", "", ())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_restarts": -1}, ValueError, "max_restarts must be at least 0; got -1"),
        ({"max_restarts": 1.0}, TypeError, "max_restarts .* got 1.0"),
        ({"max_restarts": True}, TypeError, "got True"),
        ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0; got 0"),
        ({"timeout": float("inf")}, ValueError, "timeout must be a number of seconds above 0; got inf"),
        ({"timeout": "soon"}, TypeError, "got 'soon'"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        HorovodRunner(np=-1, **arguments)


def test_numbers_of_seconds() -> None:
    assert to_timedelta("x", 0.5) == timedelta(seconds=0.5)
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="x must be a number of seconds above 0; got"):
            to_timedelta("x", seconds)
    with pytest.raises(ValueError, match=r"x must be at most 1000000000 seconds; got 1e\+300"):
        to_timedelta("x", 1e300)
    for wrong in (True, "5"):
        with pytest.raises(TypeError, match="x must be a number of seconds; got"):
            to_timedelta("x", wrong)  # type: ignore[arg-type]
