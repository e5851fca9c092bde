"""Files on file systems that write in place, as HDFS does: what fails in the middle leaves a whole file."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from spark_estimator.store import FilesystemStore, Store
from tests.store.crashes import INTERRUPT, KILL, at_each_call


class InPlaceFile(io.FileIO):
    """Its room is `InPlace.room` bytes."""

    def write(self, content: Any) -> int:
        written: int = super().write(memoryview(content)[: InPlace.room - self.tell()])
        if written < len(content):
            raise OSError(28, "No space left on device")
        return written


class InPlace(LocalFileSystem):
    """Folders of this machine, by ``inplace://``: a file is truncated first, then filled, and a move is a copy."""

    protocol = "inplace"
    room = 1 << 30
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return super()._strip_protocol(str(path).removeprefix("inplace://"))

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        return InPlaceFile(path, mode)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.copy(path1, path2)
        self.rm(path1)


@pytest.fixture(autouse=True)
def _known() -> None:
    fsspec.register_implementation("inplace", InPlace, clobber=True)


OLD, NEW = b"old" * 10_000, b"new" * 20_000


@pytest.mark.parametrize("fault", [KILL, INTERRUPT, "error=EIO", "error=ENOSPC"])
@pytest.mark.timeout(300)
def test_a_fault_at_each_system_call_leaves_a_whole_file(tmp_path: Path, fault: str) -> None:
    store = Store.create(f"inplace://{tmp_path}/store")
    path = store.get_run_path("run") + "/checkpoint"
    store.write(path, OLD)
    seen = set()

    def check(where: str) -> None:
        seen.add(store.read(path))
        assert seen <= {OLD, NEW}, where
        store.write(path, OLD)
        assert store.read(path) == OLD, where
        assert os.listdir(tmp_path / "store" / "runs" / "run") == ["checkpoint"], where

    assert at_each_call(lambda: store.write(path, NEW), check, fault, tmp_path / "log") > 4
    assert seen == {OLD, NEW}


def test_a_second_fault_while_the_first_is_repaired(tmp_path: Path) -> None:
    """A writer was killed in its second step: the file is torn, and only the file beside it is whole."""
    store = Store.create(f"inplace://{tmp_path}/store")
    path = store.get_run_path("run") + "/checkpoint"
    folder = tmp_path / "store" / "runs" / "run"
    store.write(path, OLD)
    beside = {}

    def keep(where: str) -> None:
        if (folder / ".checkpoint.next").exists() and store.read(path) == NEW:
            beside[where] = (folder / ".checkpoint.next").read_bytes()
        store.write(path, OLD)

    at_each_call(lambda: store.write(path, NEW), keep, KILL, tmp_path / "log", calls=("write", "unlink"))
    assert beside
    whole = next(iter(beside.values()))

    def tear(where: str = "") -> None:
        assert not where or store.read(path) in (NEW, OLD), where
        (folder / "checkpoint").write_bytes(NEW[:5])
        (folder / ".checkpoint.next").write_bytes(whole)

    tear()
    assert store.read(path) == NEW
    assert at_each_call(lambda: store.write(path, OLD), tear, KILL, tmp_path / "log") > 4
    store.remove(path)
    assert os.listdir(folder) == []


def test_a_full_disk_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(f"inplace://{tmp_path}/store")
    path = store.get_run_path("run") + "/checkpoint"
    store.write(path, OLD)
    monkeypatch.setattr(InPlace, "room", 40_000)
    with pytest.raises(OSError, match="No space left"):
        store.write(path, NEW)
    assert store.read(path) == OLD
    assert os.listdir(tmp_path / "store" / "runs" / "run") == ["checkpoint"]


def test_folders_are_listed_with_their_urls(tmp_path: Path) -> None:
    store = FilesystemStore(f"inplace://{tmp_path}/store")
    store.write(f"{store.prefix_path}/a", b"12")
    (tmp_path / "store" / "b").mkdir()
    assert store.entries(store.prefix_path) == [
        (f"inplace://{tmp_path}/store/a", 2),
        (f"inplace://{tmp_path}/store/b", None),
    ]
    assert store.entries(f"{store.prefix_path}/a") == [(f"inplace://{tmp_path}/store/a", 2)]
