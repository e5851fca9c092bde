"""The timeline: the file of each rank, start and stop, and the arguments of the command."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.__main__ import main
from spark_estimator.launch.local import run_local
from spark_estimator.observe import timeline


class Engine:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        self.calls.append((path, mark_cycles))

    def stop_timeline(self) -> None:
        self.calls.append(("stop",))


@pytest.mark.parametrize(
    ("path", "rank", "process_set", "file"),
    [
        ("timeline.json", 0, 0, "timeline.json"),
        ("timeline.json", 1, 0, "timeline.rank1.json"),
        ("/a.b/timeline", 12, 0, "/a.b/timeline.rank12"),
        ("timeline.json", 0, 2, "timeline.set2.json"),
        ("timeline.json", 3, 2, "timeline.set2.rank3.json"),
    ],
)
def test_every_rank_has_a_file_of_its_own(path: str, rank: int, process_set: int, file: str) -> None:
    assert timeline.make_rank_path(path, rank, process_set) == file


def test_a_timeline_is_begun_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = Engine()
    assert timeline.start(engine, "t.json", 1, mark_cycles=True) == str(tmp_path / "t.rank1.json")
    timeline.stop(engine)
    assert engine.calls == [(str(tmp_path / "t.rank1.json"), True), ("stop",)]
    with pytest.raises(ValueError, match="needs a path"):
        timeline.start(engine, "", 0)


def test_a_pipe_is_opened_by_the_engine_alone(tmp_path: Path) -> None:
    """Its reader takes the end of the first writer for the end of the timeline."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reader, 0)
    timeline.start(Engine(), tmp_path / "pipe", 0)
    assert not poll.poll(0), "a writer was there, and has ended"
    os.close(reader)


def test_what_the_variable_asks_init_for() -> None:
    assert [timeline.get_path_at_init(setting) for setting in ("", "DYNAMIC", "/tmp/t.json")] == [
        None,
        None,
        "/tmp/t.json",
    ]


def test_a_job_on_one_host_ends_with_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's phases of both ranks are in it; older files of a larger job stay out."""
    path, stale = tmp_path / "t.json", tmp_path / "t.rank5.json"
    stale.write_text("of a larger job")

    def train() -> None:
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        arrays.allreduce(numpy.ones(10), name="gradient")
        while context.rank() == 0 and '"WAIT_FOR_DATA"' not in path.read_text():
            time.sleep(0.01)  # a reader sees it while the job runs
        context.shutdown()

    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    run_local(train, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.json", "t.rank5.json"]
    events = json.loads(path.read_text())
    of_gradient = {event["name"] for event in events if event["ph"] == "X"}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "WAIT_FOR_DATA"} <= of_gradient
    assert {event["pid"] for event in events} == {0, 1}
    assert "allreduce.gradient" in path.read_text()
    monkeypatch.setenv("SPARK_ESTIMATOR_TIMELINE_RANK_FILES", "1")
    run_local(train, 2)
    assert {file.name for file in tmp_path.iterdir()} >= {"t.json", "t.rank0.json", "t.rank1.json"}


def test_a_clock_that_is_put_back_during_the_job_leaves_no_file_out(tmp_path: Path) -> None:
    path, other = tmp_path / "t.json", tmp_path / "t.rank1.json"
    for file in (path, tmp_path / "t.set1.rank1.json"):
        file.write_text("of an earlier job")
    before = timeline.snapshot_files(path)
    for file in (path, other):
        file.write_text("no trace")
        os.utime(file, (1, 1))
    assert timeline.find_written(path, 0, before) == [path]
    assert timeline.find_written(path, 1, before) == [other]


def test_files_that_are_not_merged_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, first, other = tmp_path / "t.json", tmp_path / "t.rank0.json", tmp_path / "t.rank1.json"
    for file in (path, first, other):
        file.write_text("no trace")
    assert "were not merged" in timeline.join(path, [first, other])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.rank0.json", "t.rank1.json"]
    monkeypatch.setattr(timeline, "MOST_JOINED_BYTES", 10)
    assert "are large and were not merged" in timeline.join(path, [first, other])
    assert timeline.join(path, [first]) == "", "the only one"
    assert path.read_text() == "no trace"


@pytest.mark.parametrize("arguments", [[], ["merge"], ["merge", "out.json"], ["split", "a", "b"]])
def test_wrong_arguments_are_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["timeline", *arguments])
    assert ended.value.code == 2
    assert "usage: python -m spark_estimator timeline" in capsys.readouterr().err
