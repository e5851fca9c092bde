"""A rank's progress reports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.env import PROGRESS_FD_VARIABLE
from spark_estimator.observe import progress
from spark_estimator.observe.progress import Progress, ProgressReporter
from spark_estimator.observe.step_times import Sample


@pytest.mark.parametrize(
    "report",
    [{}, [], {"at": "0", "steps": 0, "calls": 0, "waiting": 0, "waits_in": "", "training": None, "sample": None}],
)
def test_what_is_no_report_is_refused(report: Any) -> None:
    with pytest.raises(ValueError, match="progress"):
        Progress.from_dict(report)


def test_a_report_survives_its_journey() -> None:
    report = Progress(1.5, 3, 4, 0.25, "allreduce 'x'", sample=Sample(1.25, 3, 0.5, host="host"))
    assert Progress.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_long_names_are_cut() -> None:
    assert len(Progress.from_dict(Progress(0.0, 0, 0, 0.0, "x" * 5000).to_dict()).waits_in) == 100


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """(to read from, to write to) a pipe that does not block, as a launcher makes it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    yield read, write
    for end in (read, write):
        os.close(end)


def test_the_pipe_is_known_again_by_its_inode(ends: tuple[int, int], tmp_path: Path) -> None:
    write = ends[1]
    assert progress.find_pipe({PROGRESS_FD_VARIABLE: progress.identify_pipe(write)}) == write
    with (tmp_path / "file").open("wb") as file:
        for value in (f"{write}:1", "999999:1", "x:y", "", progress.identify_pipe(file.fileno())):
            assert progress.find_pipe({PROGRESS_FD_VARIABLE: value}) is None
    assert progress.find_pipe({}) is None


def test_reports_are_written_until_the_stop(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.01)
    reporter = ProgressReporter(ends[1], lambda: (7, 0.5, "allreduce 'x'"))
    with os.fdopen(os.dup(ends[0])) as reader:
        first, second = (Progress.from_dict(json.loads(reader.readline())) for _ in range(2))
        progress.count_step()
        while (report := Progress.from_dict(json.loads(reader.readline()))).sample is None:
            pass
        assert (report.steps, report.sample.steps) == (first.steps + 1, first.steps + 1)
        reporter.stop()
        reporter.stop()
        assert not reporter._thread.is_alive()
        os.write(ends[1], b"the end\n")
        *_, line = iter(reader.readline, "the end\n")
    last = Progress.from_dict(json.loads(line))
    assert (first.calls, first.waiting, first.waits_in) == (7, 0.5, "allreduce 'x'")
    assert second.at > first.at
    assert (last.calls, last.waiting, last.waits_in, last.training) == (7, 0.0, "", None), "it waits no more"


def test_a_full_pipe_and_an_engine_that_ended_do_not_raise(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(ends[1], b"x" * 4096)
    looks = iter([(0, 0.0, "")] * 3)
    reporter = ProgressReporter(ends[1], lambda: next(looks))
    reporter._thread.join(20)
    assert next(looks, None) is None and not reporter._thread.is_alive()
