"""Ranks' lines in files of a shared folder: written by each rank, read by the driver while the job runs."""

from __future__ import annotations

import time
from pathlib import Path

from spark_estimator.launch.log_relay.log_files import LogReader, LogWriter, make_log_path

SECONDS = 60


def test_where_nobody_may_append_there_are_more_files(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path, 3), LogReader(tmp_path, 4)
    lines: list[tuple[int, str, str]] = []

    def read(count: int) -> None:
        deadline = time.monotonic() + SECONDS
        while len(lines) < count:
            assert time.monotonic() < deadline, f"{lines} after {SECONDS} s, and not {count} lines"
            lines.extend(reader.read_lines())

    writer.add_line("stdout", "é one")
    read(1)
    (tmp_path / "rank.3.log").unlink()
    (tmp_path / "rank.3.log").mkdir()  # which cannot be opened either
    writer.add_line("stderr", "<stdout>:two")
    read(2)
    writer.add_line("", "three\nfour")
    writer.close()
    read(4)
    assert [line[1:] for line in lines] == [
        ("stdout", "é one"),
        ("stderr", "<stdout>:two"),
        ("", "three"),
        ("", "four"),
    ]
    assert reader.read == [0, 0, 0, 4] and writer.written == 4 and writer.take_unwritten() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank.3.1.log", "rank.3.log"]


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    reader = LogReader(tmp_path, 2)
    assert list(reader.read_lines()) == [], "no rank has written yet"
    path = make_log_path(tmp_path, 1, 0)
    path.write_bytes(b"[1]<stdout>:fir")
    assert list(reader.read_lines()) == []
    with path.open("ab") as file:
        file.write("st\n[1] a message\n[1]<stderr>:\xff".encode("latin-1"))
    assert list(reader.read_lines()) == [(1, "stdout", "first"), (1, "", "a message")]
    assert reader.read == [0, 2]


def test_a_folder_that_cannot_be_made_returns_the_lines(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    writer = LogWriter(blocked / "logs", 0)
    writer.add_line("stdout", "first")
    writer.close()
    assert isinstance(writer.error, OSError)
    assert not writer.add_line("stdout", "second")
    assert writer.take_unwritten() == [("stdout", "first")] and writer.take_unwritten() == []
