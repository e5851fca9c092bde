"""Files that come from the ranks' hosts to the driver: whole, bounded, in their place; or a line names their place."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_estimator import HorovodRunner, run
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.job import rank_files
from spark_estimator.launch.job.events import FilePiece
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.rank_files import DriverFiles, RankFiles
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.local import run_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]


def train() -> None:
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    for _ in range(5):
        arrays.allreduce(numpy.ones(10), name="gradient")
    context.shutdown()


def pack(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


class Pieces:
    """A relay that keeps what it is given."""

    def __init__(self, room: int = 1000) -> None:
        self.pieces: list[FilePiece] = []
        self.lines: list[str] = []
        self._room = room

    def pass_file(self, rank: int, name: str, piece: str) -> bool:
        self.pieces.append(FilePiece(rank, name, piece))
        return len(self.pieces) <= self._room

    def log(self, rank: int, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The driver's timeline."""
    (tmp_path / "driver").mkdir()
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "driver" / "t.json"))
    monkeypatch.setenv("SPARK_ESTIMATOR_PROFILE_FOLDER", str(tmp_path / "driver"))
    yield tmp_path / "driver" / "t.json"


def read_merged(path: Path) -> set[int]:
    events = json.loads(path.read_text())
    assert "allreduce.gradient" in path.read_text()
    return {event["pid"] for event in events}


def test_a_job_on_spark_ends_with_one_timeline_on_the_driver(spark: SparkSession, path: Path) -> None:
    HorovodRunner(np=2).run(train)
    assert read_merged(path) == {0, 1}
    assert [file.name for file in path.parent.iterdir()] == ["t.json"]


def test_a_job_on_several_hosts_ends_with_one_timeline(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, functions_travel_by_value: None
) -> None:
    """A script in place of ssh runs the agents on this host, in another folder."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("SPARK_ESTIMATOR_SSH_COMMAND", str(tmp_path / "ssh"))
    monkeypatch.setenv("SPARK_ESTIMATOR_TIMELINE_RANK_FILES", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # also the agents'
    run(train, num_proc=2, hosts="alpha:1,beta:1")
    assert read_merged(path) == {0, 1}
    assert sorted(file.name for file in path.parent.iterdir()) == ["t.json", "t.rank0.json", "t.rank1.json"]


def test_without_a_connection_to_the_driver_lines_say_where_the_timelines_are(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")
    HorovodRunner(np=2).run(train)
    assert sorted(file.name for file in path.parent.iterdir()) == ["t.json", "t.rank1.json"]
    output = "".join(capfd.readouterr())
    for rank, name in enumerate(["t.json", "t.rank1.json"]):
        assert f"{path.with_name(name)} of rank {rank} stays on host" in output
    assert "there is no connection to the driver" in output


def test_a_job_that_fails_ends_with_one_timeline(path: Path) -> None:
    def fail() -> None:
        train()
        raise ValueError("broken")

    with pytest.raises(WorkerFailedError, match="broken"):
        run_local(fail, 2)
    assert read_merged(path) == {0, 1}


def test_a_file_that_is_too_large_stays_and_the_others_come(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_unequally(of_rank_1: Path) -> None:
        import os

        train()
        if os.environ["HOROVOD_RANK"] == "1":
            with open(of_rank_1, "a") as file:
                file.write(" " * 200_000)

    monkeypatch.setattr(rank_files, "MAX_FILE_BYTES", 100_000)
    run_local(train_unequally, 2, JobOptions(args=[path.with_name("t.rank1.json")]))
    assert f"{path.with_name('t.rank1.json')} of rank 1 stays on host" in capfd.readouterr().out
    assert sorted(file.name for file in path.parent.iterdir()) == ["t.json", "t.rank1.json"]
    assert json.loads(path.read_text())


def test_a_file_in_many_pieces_arrives_whole_and_moves(tmp_path: Path, path: Path) -> None:
    name = "profile-rank1-steps10-13.json.gz"
    sent = tmp_path / f"spark_estimator-mark-{name}"
    content = bytes(range(256)) * 5000
    relay = Pieces()
    files = RankFiles({"TMPDIR": str(tmp_path)}, "mark")
    sent.write_bytes(content)
    (tmp_path / f"spark_estimator-another-{name}").write_bytes(b"another rank's")
    files.send(1, "alpha", relay)  # type: ignore[arg-type]  # it has what is needed
    assert len(relay.pieces) == 4 and not sent.exists() and not relay.lines
    with DriverFiles(JobSpec("job", 2, "train()")) as driver:
        for piece in relay.pieces:
            driver.take(piece)
    assert (path.parent / name).read_bytes() == content
    assert (path.parent / name).stat().st_mode & 0o777 == 0o600
    sent.write_bytes(content)
    files.send(1, "alpha", relay := Pieces(room=1))  # type: ignore[arg-type]
    assert sent.read_bytes() == content, "half of it was sent"
    assert f"{sent} of rank 1 stays on host alpha: there is no connection" in relay.lines[0]


@pytest.mark.parametrize(
    ("rank", "name", "pieces", "problem"),
    [
        (0, "../t.json", [pack(b"[]"), ""], "is not expected"),
        (0, "t.rank1.json", [pack(b"[]"), ""], "is not expected"),
        (0, "train.py", [pack(b"import os"), ""], "is not expected"),
        (1, "t.rank1.json", [pack(b"["), "no base64!", ""], "was not stored"),
        (1, "t.rank1.json", [base64.b64encode(b"no zlib").decode(), ""], "was not stored"),
        (1, "t.rank1.json", [pack(b"[")], "has not arrived completely"),
        (1, "t.rank1.json", [pack(b"0" * 500_000)] * 3, "has more than 1 MiB"),
    ],
)
def test_what_the_driver_does_not_take(
    rank: int,
    name: str,
    pieces: list[str],
    problem: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rank_files, "MAX_FILE_BYTES", 1 << 20)
    with DriverFiles(JobSpec("job", 2, "train()")) as driver:
        for piece in pieces:
            driver.take(FilePiece(rank, name, piece))
    assert not list(path.parent.iterdir())
    assert problem in capsys.readouterr().err
