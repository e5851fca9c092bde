"""Data sets in a store: manifests, the files of one Spark task, and what is incomplete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data import materialize
from spark_estimator.data.materialize import MANIFEST, find_data_set, find_folders, read_manifest
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    return FilesystemStore(str(tmp_path))


@pytest.fixture
def folder(store: FilesystemStore) -> str:
    """A data set of two rows in one file, with its manifest."""
    folder = store.get_train_data_path()
    mark = f"{folder}/_mark"
    store.write(mark, b"")
    writer = materialize._PartWriter(store, folder, mark, ("n",))
    (report,) = writer._write("part-0.parquet", 0, iter([pyarrow.RecordBatch.from_pydict({"n": [1, 2]})]))
    store.remove(mark)
    write_manifest(store, folder, [json.loads(report)])
    return folder


def write_manifest(store: FilesystemStore, folder: str, files: list[Any], **changed: Any) -> None:
    text = {"version": 1, "kinds": {"n": "tinyint"}, "files": files, **changed}
    store.write_text(f"{folder}/{MANIFEST}", json.dumps(text))


def test_a_data_set_is_what_its_manifest_lists(store: FilesystemStore, folder: str) -> None:
    Path(folder, "part-1-of-a-failed-attempt.parquet").write_bytes(b"incomplete")
    files = find_data_set(store, folder)
    assert files.rows == 2 and [file.path for file in files.files] == [f"{folder}/part-0.parquet"]
    assert files.files[0].kinds == {"n": "bigint"} and files.kinds == {"n": "tinyint"}, "the DataFrame's type counts"
    (batch,) = files.read_batches(["n"], 0, 1, 10)
    assert batch.column(0).to_pylist() == [1, 2]


def test_a_data_set_by_spark(store: FilesystemStore, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"{tmp_path} holds no complete data: neither {MANIFEST}, .* nor Spark's"):
        find_data_set(store, str(tmp_path))
    (tmp_path / "_SUCCESS").touch()
    assert find_data_set(store, str(tmp_path)).rows == 1


def test_files_that_are_gone_or_of_another_size(store: FilesystemStore, folder: str) -> None:
    part = Path(folder, "part-0.parquet")
    part.write_bytes(part.read_bytes() + b"more")
    with pytest.raises(DataError, match=rf"part-0\.parquet has {part.stat().st_size} bytes, not .* remove the folder"):
        find_data_set(store, folder)
    part.unlink()
    with pytest.raises(DataError, match=r"part-0\.parquet is not there"):
        find_data_set(store, folder)


FILE = {"name": "a", "size": 1, "groups": [1], "kinds": {}}


@pytest.mark.parametrize(
    ("files", "changed", "words"),
    [
        ([], {"version": 2}, "it is of version 2, not 1"),
        ([{**FILE, "name": "../a"}], {}, r"it lists \{'name': '\.\./a'"),
        ([{**FILE, "size": "1"}], {}, "it lists"),
        ([{**FILE, "groups": [1, -1]}], {}, "it lists"),
        ([{"name": "a"}], {}, "'size'"),
        (None, {}, "NoneType"),
    ],
)
def test_manifests_that_are_refused(
    store: FilesystemStore, tmp_path: Path, files: Any, changed: dict[str, Any], words: str
) -> None:
    write_manifest(store, str(tmp_path), files, **changed)
    with pytest.raises(
        DataError, match=rf"{MANIFEST} is not a manifest of spark_estimator: .*{words}.*Remove the fold"
    ):
        read_manifest(store, str(tmp_path))
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="is not a manifest of spark_estimator"):
        read_manifest(store, str(tmp_path))


def test_folders_by_their_numbers(store: FilesystemStore, tmp_path: Path) -> None:
    for name in (".10", ".2", "", ".x", "2"):
        (tmp_path / f"intermediate_train_data{name}").mkdir()
    assert list(find_folders(store)) == [None, 2, 10]
    assert find_folders(store)[2] == str(tmp_path / "intermediate_train_data.2")


def test_a_task_writes_one_file_in_row_groups(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "_GROUP_BYTES", 100)
    store.write(str(tmp_path / "mark"), b"")
    writer = materialize._PartWriter(store, str(tmp_path), str(tmp_path / "mark"), ("n",))
    batches = [pyarrow.RecordBatch.from_pydict({"n": [number] * 8}) for number in range(5)]  # 64 bytes each
    (text,) = writer._write("part", 3, iter(batches))
    report = json.loads(text)
    assert (report["partition"], report["name"], report["groups"]) == (3, "part", [16, 16, 8])
    assert (report["size"], report["kinds"]) == ((tmp_path / "part").stat().st_size, {"n": "bigint"})
    assert pyarrow.parquet.read_table(tmp_path / "part").num_rows == 40
    assert writer._write("none", 0, iter([])) == [] and not (tmp_path / "none").exists()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_task_that_still_writes_when_another_has_failed_leaves_nothing(
    store: FilesystemStore, has_begun: bool
) -> None:
    """Spark ends it a moment later than it reports the failure to the driver, which has removed the folder by then."""
    folder = store.get_train_data_path()
    mark = f"{folder}/_mark"
    rows = pyarrow.RecordBatch.from_pydict({"id": [1, 2]})
    store.write(mark, b"")

    def batches() -> Iterator[pyarrow.RecordBatch]:
        if has_begun:
            yield rows
        materialize._discard(store, folder, mark)
        assert not Path(folder).exists()
        yield rows

    with pytest.raises(DataError, match=r"part-0 cannot be written on host .*the driver has made, is not there"):
        materialize._PartWriter(store, folder, mark, ("n",))._write("part-0", 0, batches())
    assert not Path(folder).exists()


def test_a_complete_data_set_is_not_discarded(store: FilesystemStore, folder: str) -> None:
    materialize._discard(store, folder, f"{folder}/_mark")
    assert find_data_set(store, folder).rows == 2


def test_two_drivers_at_once_get_folders_of_their_own(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = FilesystemStore.write
    other: list[str] = []

    def second_comes(self: FilesystemStore, path: str, content: bytes) -> None:
        """The other driver has seen the same folders, and writes its mark at the same moment."""
        write(self, path, content)
        if not other:
            other.append(path)
            other.extend(materialize._claim_folder(store, folders_seen))

    folders_seen: dict[int | None, str] = {}
    monkeypatch.setattr(FilesystemStore, "write", second_comes)
    folder, mark = materialize._claim_folder(store, folders_seen)
    assert folder != other[1] and Path(mark).is_file() and Path(other[2]).is_file()
    assert [path.name for path in Path(folder).iterdir()] == [Path(mark).name]
    assert [path.name for path in Path(other[1]).iterdir()] == [Path(other[2]).name]
