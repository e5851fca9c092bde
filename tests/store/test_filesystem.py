"""Stores: which kind a path makes, where they keep what, files that are whole."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from pathlib import Path

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.store import DBFSLocalStore, Entry, FilesystemStore, HDFSStore, LocalStore, Store


@pytest.mark.parametrize(
    ("path", "kind", "prefix"),
    [
        ("/data/x/", FilesystemStore, "/data/x"),
        ("file:///data/x", FilesystemStore, "/data/x"),
        ("/Volumes/main/default/x", FilesystemStore, "/Volumes/main/default/x"),
        ("memory://x/y", FilesystemStore, "memory://x/y"),
        ("hdfs://name:8020/x", HDFSStore, "hdfs://name:8020/x"),
        ("dbfs:/x", DBFSLocalStore, "/dbfs/x"),
        ("file:///dbfs/x", DBFSLocalStore, "/dbfs/x"),
    ],
)
def test_the_path_makes_the_kind(path: str, kind: type[Store], prefix: str) -> None:
    store = Store.create(path)
    assert type(store) is kind
    assert isinstance(store, FilesystemStore)
    assert store.prefix_path == prefix
    assert pickle.loads(pickle.dumps(store)).prefix_path == prefix


def test_folders_are_horovod_s() -> None:
    store = FilesystemStore("/p")
    assert store.get_train_data_path() == "/p/intermediate_train_data"
    assert store.get_train_data_path(2) == "/p/intermediate_train_data.2"
    assert store.get_val_data_path(0) == "/p/intermediate_val_data.0"
    assert store.get_test_data_path() == "/p/intermediate_test_data"
    assert store.get_checkpoint_path("run") == "/p/runs/run/checkpoint"
    assert store.get_logs_path("run") == "/p/runs/run/logs"
    assert Store.create("dbfs:/p").get_checkpoint_path("run") == "/dbfs/p/runs/run/checkpoint.tf"  # type: ignore[attr-defined]
    other = FilesystemStore("/p", runs_path="/r", checkpoint_filename="c", save_runs=False)
    assert other.get_runs_path() == "/r"
    assert other.get_checkpoint_path("run") is None
    assert other.get_logs_path("run") is None


@pytest.mark.parametrize("prefix", ["", "memory://spark_estimator_test"])
def test_files(prefix: str, tmp_path: Path) -> None:
    store = FilesystemStore(prefix or str(tmp_path))
    path = store.get_run_path("run") + "/b.ckpt"
    assert not store.exists(path)
    assert store.get_checkpoints("run") == []
    store.write(path, b"one")
    store.write(path, b"two")
    store.write_text(store.get_run_path("run") + "/a.ckpt", "three")
    assert store.read(path) == b"two"
    assert [name.rpartition("/")[2] for name in store.get_checkpoints("run")] == ["a.ckpt", "b.ckpt"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path))
    store.write(str(tmp_path / "file"), b"old")
    with pytest.raises(TypeError):
        store.write(str(tmp_path / "file"), "no bytes")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_run_is_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="run_id must name a folder"):
        FilesystemStore("/p").get_run_path(name)


def test_an_unknown_scheme() -> None:
    with pytest.raises(PreflightError, match="nonsense://x"):
        FilesystemStore("nonsense://x")


@pytest.mark.parametrize(
    ("url", "package"), [("s3://bucket/x", "s3fs"), ("abfss://container@account.dfs.core.windows.net/x", "adlfs")]
)
def test_a_missing_package_is_named_once(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PreflightError) as caught:
        FilesystemStore(url)
    text = f"{url}: a package is missing. Run pip install {package}, on the driver and on all executors.\n"
    assert str(caught.value).startswith(text)


def test_the_older_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Horovod gives none, either
        assert LocalStore("/p").get_runs_path() == "/p/runs"


@pytest.mark.parametrize("path", ["s3:/bucket/x", "hdfs:x::y", "simplecache::s3://bucket/x", "gs:/bucket"])
def test_what_is_nearly_a_url_is_no_local_folder(path: str) -> None:
    with pytest.raises(ValueError, match="is neither a path nor a URL"):
        Store.create(path)
    with pytest.raises(ValueError, match="is neither a path nor a URL"):
        FilesystemStore("/x", runs_path=path)


def test_folders_apart_have_the_forms_of_the_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert FilesystemStore("x", runs_path="runs").get_runs_path() == str(tmp_path / "runs")
    apart = FilesystemStore(str(tmp_path), runs_path="memory://apart/runs")
    apart.write(apart.get_run_path("run") + "/a", b"content")
    assert apart.read("memory://apart/runs/run/a") == b"content" and os.listdir(tmp_path) == []


@pytest.mark.parametrize("prefix", ["", "memory://spark_estimator_entries"])
def test_entries_and_removal(prefix: str, tmp_path: Path) -> None:
    store = FilesystemStore(prefix or str(tmp_path))
    folder = store.get_run_path("run")
    store.write(f"{folder}/b", b"two")
    store.write(f"{folder}/sub/a", b"1")
    assert store.entries(folder) == [Entry(f"{folder}/b", 3), Entry(f"{folder}/sub", None)]
    assert store.entries(f"{folder}/b") == [Entry(f"{folder}/b", 3)]
    with store.open(f"{folder}/b") as file:
        file.seek(1)
        assert file.read() == b"wo"
    store.remove(f"{folder}/b")
    store.remove(f"{folder}/sub")
    assert not store.exists(f"{folder}/b") and not store.exists(f"{folder}/sub/a")
    for call in (store.remove, store.read, store.entries):
        with pytest.raises(FileNotFoundError):
            call(f"{folder}/b")


def test_opening_for_writing_makes_the_folder_unless_it_is_refused(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        store.open(f"{tmp_path}/a/b", "wb", make_folder=False)
    with store.open(f"{tmp_path}/a/b", "wb") as file:
        file.write(b"content")
    assert store.read(f"{tmp_path}/a/b") == b"content"


def test_a_store_of_a_user_names_the_method_that_it_lacks() -> None:
    class Mine(Store):
        pass

    for name, call in {
        "get_run_path": lambda: Mine().get_run_path("run"),
        "exists": lambda: Mine().exists("/x"),
        "read": lambda: Mine().read("/x"),
        "write": lambda: Mine().write("/x", b""),
    }.items():
        with pytest.raises(NotImplementedError, match=rf"Mine is a Store and has to define {name}\(\)"):
            call()
