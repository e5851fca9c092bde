"""Stores on Databricks' file system: the forms of its paths."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from spark_estimator.store import DBFSLocalStore


@pytest.mark.parametrize("path", ["dbfs:/a/b", "dbfs:///a/b", "/dbfs/a/b", "file:///dbfs/a/b", "file:/dbfs/a/b"])
def test_all_forms_are_one_folder(path: str) -> None:
    assert DBFSLocalStore.matches(path)
    assert DBFSLocalStore.normalize_path(path) == "/dbfs/a/b"
    store = DBFSLocalStore(path)
    assert store.prefix_path == "/dbfs/a/b"
    assert store.get_train_data_path() == "/dbfs/a/b/intermediate_train_data"


@pytest.mark.parametrize("path", ["/a/dbfs/b", "/dbfsx", "/Volumes/main", "s3://dbfs/a", "hdfs:/dbfs/a"])
def test_other_paths(path: str) -> None:
    assert not DBFSLocalStore.matches(path)
    assert DBFSLocalStore.normalize_path(path) == path
    with pytest.raises(ValueError, match=rf"{path}: a path of DBFS begins with one of dbfs:/, /dbfs/"):
        DBFSLocalStore(path)


def test_arguments() -> None:
    store = DBFSLocalStore("dbfs:/x", runs_path="dbfs:/runs")
    assert store.get_runs_path() == "/dbfs/runs"
    assert store.get_checkpoint_path("run") == "/dbfs/runs/run/checkpoint.tf"
    assert DBFSLocalStore("dbfs:/x", checkpoint_filename="last").get_checkpoint_filename() == "last"
    assert DBFSLocalStore.matches(PurePosixPath("/dbfs/x"))  # type: ignore[arg-type]
