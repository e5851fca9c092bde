"""Files and folders that are replaced: after every kill, failure or interruption, one of the two is complete."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_estimator.store.replacement import (
    discard_leftovers,
    find_surviving_folder,
    replace_file,
    replace_folder,
)
from tests.store.crashes import INTERRUPT, KILL, NO_EXCHANGE, at_each_call

FILES = ("a", "b", "sub/c")
OTHER_FAULTS = (INTERRUPT, "error=EIO", "error=ENOSPC")


def write_folder(target: Path, content: str) -> None:
    with replace_folder(target, overwrite=True) as folder:
        (folder / "sub").mkdir()
        for name in FILES:
            (folder / name).write_text(content)


def content_of(target: Path) -> str:
    """Of all files alike."""
    folder = find_surviving_folder(target, "b")
    contents = {(folder / name).read_text() for name in FILES}
    assert len(contents) == 1, contents
    return contents.pop()


@pytest.mark.parametrize(
    "options", [(), pytest.param(NO_EXCHANGE, marks=pytest.mark.slow)], ids=["exchange", "two steps"]
)
@pytest.mark.parametrize("fault", [KILL, *(pytest.param(fault, marks=pytest.mark.slow) for fault in OTHER_FAULTS)])
@pytest.mark.timeout(400)
def test_a_fault_at_each_system_call_leaves_a_whole_folder(
    tmp_path: Path, fault: str, options: tuple[str, ...]
) -> None:
    target = tmp_path / "folder" / "model"
    write_folder(target, "old")
    seen = set()

    def check(where: str) -> None:
        seen.add(content_of(target))
        assert seen <= {"old", "new"}, where
        write_folder(target, "old")
        assert os.listdir(target.parent) == ["model"], where
        assert content_of(target) == "old", where

    assert at_each_call(lambda: write_folder(target, "new"), check, fault, tmp_path / "log", *options) > 20
    assert seen == {"old", "new"}


@pytest.mark.parametrize(
    "fault",
    [KILL, "error=ENOSPC", *(pytest.param(fault, marks=pytest.mark.slow) for fault in (INTERRUPT, "error=EIO"))],
)
def test_a_fault_at_each_system_call_leaves_a_whole_file(tmp_path: Path, fault: str) -> None:
    target = tmp_path / "folder" / "checkpoint"
    replace_file(str(target), b"old" * 10_000)
    seen = set()

    def check(where: str) -> None:
        seen.add(target.read_bytes())
        assert seen <= {b"old" * 10_000, b"new" * 20_000}, where
        replace_file(str(target), b"old" * 10_000)
        assert os.listdir(target.parent) == ["checkpoint"], where

    assert at_each_call(lambda: replace_file(str(target), b"new" * 20_000), check, fault, tmp_path / "log") > 4
    assert len(seen) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk of our own without the right to mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_keeps_the_previous_one(small_disk: Path) -> None:
    write_folder(small_disk / "model", "o" * 100_000)
    replace_file(str(small_disk / "file"), b"o" * 100_000)
    with pytest.raises(OSError, match="No space left"):
        write_folder(small_disk / "model", "n" * 400_000)
    with pytest.raises(OSError, match="No space left"):
        replace_file(str(small_disk / "file"), b"n" * 900_000)
    assert content_of(small_disk / "model") == "o" * 100_000
    assert (small_disk / "file").read_bytes() == b"o" * 100_000
    assert sorted(os.listdir(small_disk)) == ["file", "model"]


def test_a_mount_cannot_be_replaced(small_disk: Path) -> None:
    (small_disk / "b").write_text("old")
    with pytest.raises(OSError, match="the previous folder is a mount, or of a container's image: remove it"):
        write_folder(small_disk, "new")
    assert os.listdir(small_disk) == ["b"] and os.listdir(small_disk.parent) == ["disk"]


def test_what_a_living_writer_writes_is_no_leftover(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replace_folder(target, overwrite=True) as first:
        (first / "b").write_text("first")
        with replace_folder(target, overwrite=True) as second:
            (second / "b").write_text("second")
        discard_leftovers(str(tmp_path))
        assert (target / "b").read_text() == "second"
        assert (first / "b").read_text() == "first"
    assert (target / "b").read_text() == "first"
    dead = tmp_path / ".other.0123abcd.partial"
    dead.write_text("")
    with dead.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        discard_leftovers(str(tmp_path))
        assert dead.exists()
    discard_leftovers(str(tmp_path), "model")
    assert dead.exists()
    discard_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == ["model"]


def test_without_locks_a_clock_that_is_ahead_makes_nothing_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not changed for a day of this process is one."""

    def no_lock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    now = time.monotonic()
    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    partial = tmp_path / ".model.0123abcd.partial"
    partial.write_text("a")
    os.utime(partial, (1, 1))
    discard_leftovers(str(tmp_path))
    now += 50_000
    partial.write_text("ab")
    for passed in (0, 86_000):
        now += passed
        discard_leftovers(str(tmp_path))
        assert partial.exists()
    now += 1_000
    discard_leftovers(str(tmp_path))
    assert not partial.exists()


def test_two_writers_at_a_new_name(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(FileExistsError, match="meanwhile"), replace_folder(target, overwrite=False) as first:
        (first / "b").write_text("first")
        with replace_folder(target, overwrite=False) as second:
            (second / "b").write_text("second")
    assert (target / "b").read_text() == "second"
    assert os.listdir(tmp_path) == ["model"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write_folder(tmp_path / "model-1", "old")
    (tmp_path / "latest").symlink_to("model-1")
    write_folder(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink() and content_of(tmp_path / "model-1") == "new"


def test_a_file_and_an_empty_folder_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a file")
    write_folder(tmp_path / "model", "new")
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", "new")
    assert content_of(tmp_path / "model") == content_of(tmp_path / "empty") == "new"
    assert sorted(os.listdir(tmp_path)) == ["empty", "model"]
