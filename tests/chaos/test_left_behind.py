"""Each kind of thing that a job can leave behind must be noticed."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import left_behind
from chaos.left_behind import Before

MARK = "chaos-test-mark"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(left_behind, "_PATIENCE_SECONDS", 0.1)
    yield


def left(before: Before, folder: Path) -> list[str]:
    return left_behind.left_behind(before, MARK, folder, count_descriptors=True)


def test_what_the_runner_itself_needs_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "output").touch()
    (tmp_path / "fired.0").touch()
    assert left(Before.take(), tmp_path) == []


def test_a_process(tmp_path: Path) -> None:
    before = Before.take()
    with subprocess.Popen(["sleep", "100"], env={**os.environ, "CHAOS_RUN": MARK}) as process:
        try:
            assert f"process {process.pid}: sleep 100 " in left(before, tmp_path)
        finally:
            process.kill()
    assert left(before, tmp_path) == []


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "tmpabc").touch()
    assert left(Before.take(), tmp_path) == ["file tmpabc"]


def test_a_descriptor_and_a_port(tmp_path: Path) -> None:
    before = Before.take()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert left(before, tmp_path) == [f"descriptor socket listening at port {server.getsockname()[1]}"]
    read, write = os.pipe()
    assert left(before, tmp_path) == ["descriptor pipe"] * 2
    os.close(read)
    os.close(write)


def test_a_thread(tmp_path: Path) -> None:
    before, over = Before.take(), threading.Event()
    thread = threading.Thread(target=over.wait, name="lingers")
    thread.start()
    assert left(before, tmp_path) == ["thread lingers"]
    over.set()
    thread.join()


def test_what_a_killed_writer_left_is_removed_as_the_next_writer_does(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.0123abcd.partial").touch()
    assert left(Before.take(), tmp_path) == []
