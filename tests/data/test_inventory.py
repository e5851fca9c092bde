"""The data sets of a store."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from spark_estimator.data.inventory import data_sets
from spark_estimator.data.materialize import MANIFEST
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    return FilesystemStore(str(tmp_path))


def folder(store: FilesystemStore, index: int | None, rows: int) -> Path:
    path = Path(store.get_train_data_path(index))
    path.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table({"n": range(rows)}), path / "part-0.parquet")
    return path


def manifest(path: Path, **changed: object) -> None:
    part = path / "part-0.parquet"
    rows = pyarrow.parquet.read_metadata(part).num_rows
    file = {"name": part.name, "size": part.stat().st_size, "groups": [rows], "kinds": {"n": "bigint"}}
    text = {"version": 1, "fingerprint": None, "kinds": {"n": "bigint"}, "files": [file], **changed}
    (path / MANIFEST).write_text(json.dumps(text))


def test_complete_and_incomplete_data_sets(store: FilesystemStore) -> None:
    manifest(folder(store, None, 5), written=0.0, session="app-1")
    (folder(store, 10, 3) / "_SUCCESS").touch()  # by Spark
    incomplete = folder(store, 2, 4)
    ours, incomplete_set, spark_s = data_sets(store)
    assert (ours.index, ours.rows, ours.session) == (None, 5, "app-1")
    assert ours.written == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert ours.size == sum(file.stat().st_size for file in Path(ours.folder).iterdir())
    assert (spark_s.index, spark_s.rows, spark_s.written, spark_s.session) == (10, 3, None, None)
    assert (incomplete_set.index, incomplete_set.rows, incomplete_set.folder) == (2, None, str(incomplete))


def test_a_damaged_data_set_is_listed_and_removed(store: FilesystemStore) -> None:
    path = folder(store, None, 5)
    manifest(path, written="yesterday", session=7)
    (entry,) = data_sets(store)
    assert (entry.rows, entry.written, entry.session) == (5, None, None), "values of other types are unknown"
    (path / "part-0.parquet").write_bytes(b"damaged")
    (entry,) = data_sets(store)
    assert entry.rows is None
    entry.remove()
    assert not path.exists() and data_sets(store) == []


def test_an_empty_store(store: FilesystemStore, tmp_path: Path) -> None:
    assert data_sets(store) == []
    assert data_sets(FilesystemStore(f"{tmp_path}/missing")) == []
    (tmp_path / "intermediate_train_data.x").mkdir()
    (tmp_path / "intermediate_val_data").mkdir()
    assert data_sets(store) == []
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"the store's folder .* cannot be listed on host"):
        data_sets(FilesystemStore(f"{tmp_path}/file/x"))
