"""Horovod's methods of stores for programs that train in a store's folders themselves."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.store import FilesystemStore


def test_parquet_files(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path))
    path = store.get_train_data_path()
    assert not store.is_parquet_dataset(path)
    Path(path).mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}), f"{path}/part.parquet")
    assert store.is_parquet_dataset(path)
    assert store.get_parquet_dataset(path).read().column("x").to_pylist() == [1, 2]


def test_files_of_a_run_on_this_machine(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path))
    remote = store.to_remote("run", 2)
    assert remote.train_data_path == store.get_train_data_path(2) and remote.run_path == store.get_run_path("run")
    assert remote.saving_runs is True
    with remote.get_local_output_dir() as folder:
        assert folder == store.get_run_path("run")
        (Path(folder) / "file").write_text("x")
        remote.sync(folder)
    other = tmp_path / "other"
    (other / "logs").mkdir(parents=True)
    (other / "logs" / "events").write_text("y")
    remote.sync(str(other))
    assert store.read(f"{store.get_logs_path('run')}/events") == b"y"
    store.copy(f"{remote.run_path}/file", f"{remote.run_path}/copy")
    assert store.read(f"{remote.run_path}/copy") == b"x"
    assert store.get_full_path_fn()("file:///a/b") == "/a/b"
    assert store.get_data_metadata_path("/a") == "/a/_cached_metadata.pkl"


def test_files_of_a_run_elsewhere() -> None:
    pytest.importorskip("fsspec")
    store = FilesystemStore("memory://run_views")
    with store.get_local_output_dir_fn("run")() as folder:
        assert Path(folder).is_dir()
        (Path(folder) / "file").write_text("x")
        sync = store.sync_fn("run")
        sync(folder)
    assert not Path(folder).exists()
    assert store.read(f"{store.get_run_path('run')}/file") == b"x"
