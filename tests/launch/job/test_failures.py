from __future__ import annotations

import linecache
import pickle
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from spark_estimator.errors import (
    PythonEnvironmentError,
    RemoteTraceback,
    ResultError,
    WorkerFailedError,
    remove_links,
)
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import (
    FailureReport,
    find_first_failure,
    find_marked,
    make_job_error,
    to_marked_text,
    with_source,
)
from spark_estimator.observe import frames
from spark_estimator.observe.driver_log import printable


def report(rank: int, kind: str = failures.RAISED, when: float = 0.0, **more: Any) -> FailureReport:
    return FailureReport(rank, f"host{rank}", 100 + rank, kind, f"did {kind}", when=when, **more)


def test_the_earliest_is_the_cause() -> None:
    reports = [report(2, when=5.0), report(0, failures.KILLED, when=3.0), report(1, when=4.0)]
    for _ in range(6):
        random.shuffle(reports)
        cause = find_first_failure(reports)
        assert cause is not None and cause.rank == 0


def test_one_that_lost_a_peer_never_beats_one_that_failed_by_itself() -> None:
    cause = find_first_failure([report(0, when=1.0, secondary=True), report(1, when=9.0)])
    assert cause is not None and cause.rank == 1
    cause = find_first_failure([report(3, when=2.0, secondary=True), report(0, when=1.0, secondary=True)])
    assert cause is not None and cause.rank == 0


def test_a_frozen_rank_is_the_cause_if_others_lost_it_for_its_silence() -> None:
    silence = "raised PeerLostError: rank 2 on h (pid 102) is lost: it has sent no heartbeat for 6.0 s"
    lost = FailureReport(0, "h", 100, failures.RAISED, silence, when=6.0, secondary=True)
    frozen = [report(rank, failures.KILLED, when=rank + 6.0, secondary=True) for rank in (1, 2)]
    assert find_first_failure([lost, *frozen]) is frozen[1]
    assert find_first_failure([lost, frozen[0]]) is lost  # the lost one was not found stopped
    left = FailureReport(0, "h", 100, failures.RAISED, "rank 1 on h has left the job", when=6.0, secondary=True)
    assert find_first_failure([left, *frozen]) is left
    raised = report(3, when=9.0)
    assert find_first_failure([lost, *frozen, raised]) is raised


def test_one_that_the_launcher_stopped_is_no_cause() -> None:
    assert find_first_failure([report(0, failures.STOPPED), report(1, failures.STOPPED)]) is None
    assert find_first_failure([]) is None


def test_the_error_tells_the_cause_first_and_then_the_others() -> None:
    cause = report(1, traceback="Traceback ...\nValueError: x", exit_code=None)
    error = make_job_error(cause, [report(0, failures.STOPPED), cause, report(2, secondary=True)], 5, "train()")
    assert isinstance(error, WorkerFailedError)
    assert (error.rank, error.host, error.exitcode) == (1, "host1", None)
    assert remove_links(str(error)).splitlines() == [
        "rank 1 (host host1, pid 101) did raised",
        "The other ranks of train():",
        "  rank 0 (host host0, pid 100) did stopped",
        "  rank 2 (host host2, pid 102) did raised",
        "  2 more without a failure",
    ]
    assert isinstance(error.__cause__, RemoteTraceback) and "ValueError: x" in str(error.__cause__)


def test_the_last_line_explains_the_class_that_the_rank_raised() -> None:
    message = "raised spark_estimator.errors.DataError: column 'x' holds null in row 3 of this rank's rows. " + "x" * 60
    cause = replace(report(1), message=message)
    error = make_job_error(cause, [cause, replace(report(0), message=message)], 2, "train()")
    assert str(error).endswith("\nmore: python -m spark_estimator explain DATA")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "rank 0 (host host0, pid 100) failed with the same message\n" in str(error)
    assert isinstance(error, WorkerFailedError) and error.cause_class == "DataError"
    other = replace(cause, message="raised spark_estimator.errors.Unknown: x")
    assert str(make_job_error(other, [other], 1, "train()")).endswith("explain WORKER_FAILED")


def test_what_was_run_is_named_once() -> None:
    command = "python train.py " + "--option value " * 100
    cause = report(1, failures.EXITED)
    text = str(make_job_error(cause, [cause], 1, command))
    assert text.splitlines()[0] == "rank 1 (host host1, pid 101) did exited"
    assert text.splitlines()[1].startswith("It ran python train.py ") and len(text) < 500
    text = str(make_job_error(cause, [cause, report(0, failures.EXITED), report(2, failures.STOPPED)], 3, command))
    assert text.count("train.py") == 1
    raised = replace(cause, message="was bad before train() returned")
    assert str(make_job_error(raised, [raised], 1, "train()")).count("train()") == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (failures.BAD_RESULT, ResultError),
        (failures.ENVIRONMENT, PythonEnvironmentError),
        (failures.EXITED, WorkerFailedError),
        (failures.NOT_LOADED, WorkerFailedError),
    ],
)
def test_the_kind_of_failure_decides_the_kind_of_error(kind: str, error: type[Exception]) -> None:
    assert type(make_job_error(report(0, kind), [report(0, kind)], 1, "f()")) is error


def test_reports_survive_inside_a_java_trace() -> None:
    first = report(1, traceback='File "x"\n  raise ValueError("{quoted}")')
    text = f"org.apache.spark.SparkException: Job aborted\nRuntimeError: {to_marked_text(first)}\n\tat java.lang.Thread"
    assert find_marked(text + text) == [first]
    assert find_marked(text[: len(text) // 2]) == []
    assert find_marked("nothing here") == []


def test_a_cell_s_lines_are_those_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, lines = "/tmp/ipykernel_7/1.py", ["def bad():\n", "    return 1 // 0  # \x1b[2J\n"]
    monkeypatch.setitem(linecache.cache, cell, (60, None, lines, cell))
    known = '  File "/site/known.py", line 1, in main\n    bad()\n'
    traceback = f'Traceback (most recent call last):\n{known}  File "{cell}", line 2, in bad\nZeroDivisionError: no'
    error = make_job_error(report(0, traceback=traceback), [report(0)], 1, "f()")
    assert isinstance(error, WorkerFailedError)
    added = traceback.replace("in bad\n", "in bad\n    return 1 // 0  # \\x1b[2J\n")
    assert error.traceback == added and added in str(error.__cause__)


def test_a_long_traceback_loses_its_middle() -> None:
    long = report(0, traceback="begin " + "x" * 1_000_000 + " end")
    sent = FailureReport.from_dict(long.to_dict())
    assert len(sent.traceback) < 70_000
    assert sent.traceback.startswith("begin") and sent.traceback.endswith("end") and "left out" in sent.traceback


@pytest.mark.parametrize("character", ["x", "\N{GRINNING FACE}", "\x00", "\udc80"])
def test_a_report_fits_into_a_frame_whatever_its_texts_are_made_of(character: str) -> None:
    """JSON writes some characters as twelve bytes."""
    text = f"begin {character * 1_000_000} end"
    long = report(0, traceback=text, log_tail=text)
    frame = frames.encode({"kind": frames.FAILURE, "report": replace(long, message=text).to_dict()})
    assert len(frame) <= frames.MAX_FRAME_BYTES
    (taken,) = frames.take_frames(bytearray(frame))
    sent = FailureReport.from_dict(taken["report"])
    for name in ("message", "traceback", "log_tail"):
        shown = getattr(sent, name)
        assert shown.startswith("begin") and shown.endswith("end")
        (cut,) = re.findall(r"\.\.\. (\d+) characters left out \.\.\.", shown)
        assert int(cut) + shown.count(printable(character)) >= 1_000_000
    assert len(sent.traceback) > 10_000, "much of it is left"


@pytest.mark.parametrize("change", [{"rank": "1"}, {"pid": None}, {"age": "now"}, {"host": 3}, {"secondary": 1.5}])
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="failure report"):
        FailureReport.from_dict({**report(0).to_dict(), **change})
    with pytest.raises(TypeError):
        FailureReport.from_dict({**report(0).to_dict(), "more": 1})


def test_a_report_cannot_steer_the_terminal() -> None:
    evil = FailureReport.from_dict({**report(0).to_dict(), "message": "a\x1b[2Jb\r\nc"})
    assert evil.message == "a\\x1b[2Jb\\x0d\nc"


def test_horovods_sentence_is_added_once_and_last() -> None:
    error = WorkerFailedError("rank 1 raised ValueError", rank=1)
    for _ in range(2):
        assert failures.add_horovods_sentence(error) is error
    assert error.args[0].splitlines() == [
        "rank 1 raised ValueError",
        "The job was terminated, as one or more processes exited with non-zero status.",
    ]


CELL = "/tmp/ipykernel_7/1.py"


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's cell, of which this process has the source in memory."""
    lines = ["def bad():\n", "    return 1 // 0  # \x1b[2J\n"]
    monkeypatch.setitem(linecache.cache, CELL, (60, None, lines, CELL))


@pytest.mark.usefixtures("cell")
def test_a_frame_without_source_gets_its_line_once() -> None:
    traceback = f'Traceback (most recent call last):\n  File "{CELL}", line 2, in bad\nZeroDivisionError: no'
    added = with_source(traceback)
    assert added == traceback.replace("in bad\n", "in bad\n    return 1 // 0  # \\x1b[2J\n")
    assert with_source(added) == added


@pytest.mark.usefixtures("cell")
def test_frames_of_an_exception_group_keep_their_indent() -> None:
    group = f'  | Traceback (most recent call last):\n  |   File "{CELL}", line 2, in bad\n  | E'
    assert "in bad\n  |     return 1 // 0" in with_source(group)


@pytest.mark.usefixtures("cell")
def test_other_text_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing line, a file that is not in memory, an entry that is not loaded, invalid text."""
    monkeypatch.setitem(linecache.cache, "lazy.py", (list,))
    frames = [f'  File "{file}", line {number}, in x' for file, number in ((CELL, 3), (CELL, 0), ("lazy.py", 1))]
    for other in (*frames, f'  File "{__file__}x", line 1, in x', '  File "", line 1, in', "", "\n\n", "x" * 99):
        assert with_source(other) == other
