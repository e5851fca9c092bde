"""The timeline: the file of each rank, start and stop, and the arguments of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_estimator.__main__ import main
from spark_estimator.observe import timeline


class Engine:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def timeline_start(self, path: str, mark_cycles: bool) -> None:
        self.calls.append((path, mark_cycles))

    def timeline_stop(self) -> None:
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
    assert timeline.file_of(path, rank, process_set) == file


def test_a_timeline_is_begun_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = Engine()
    assert timeline.start(engine, "t.json", 1, mark_cycles=True) == str(tmp_path / "t.rank1.json")
    timeline.stop(engine)
    assert engine.calls == [(str(tmp_path / "t.rank1.json"), True), ("stop",)]
    with pytest.raises(ValueError, match="needs a path"):
        timeline.start(engine, "", 0)


def test_what_the_variable_asks_init_for() -> None:
    assert [timeline.path_at_init(setting) for setting in ("", "DYNAMIC", "/tmp/t.json")] == [None, None, "/tmp/t.json"]


@pytest.mark.parametrize("arguments", [[], ["merge"], ["merge", "out.json"], ["split", "a", "b"]])
def test_wrong_arguments_are_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["timeline", *arguments])
    assert ended.value.code == 2
    assert "usage: python -m spark_estimator timeline" in capsys.readouterr().err
