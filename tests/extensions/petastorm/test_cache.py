"""Where the converter writes DataFrames: the store below the session's folder, types, and removal at exit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm import cache
from spark_estimator.store import FilesystemStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_columns_are_written_in_the_precision_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import StructType, _parse_datatype_string

    kinds = {"b": "boolean", "n": "int", "x": "double", "v": "array<double>", "d": "decimal(5,2)"}
    schema = StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, _parse_datatype_string(kind))
    frame = spark.createDataFrame([(True, 1, 0.5, [0.5], None, Vectors.dense([1, 2]))], schema.add("w", VectorUDT()))
    spark.conf.set(cache.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    for dtype, kind in (("float32", "float"), ("float64", "double")):
        files, folder = cache.write_frame(frame, frame.columns, dtype)
        arrays = {"v": f"array<{kind}>", "w": f"array<{kind}>"}
        assert dict(files.files[0].kinds) == {"b": "boolean", "n": "int", "x": kind, **arrays, "d": "decimal(5,2)"}
        (batch,) = files.read_batches(["w", "b", "x"], 0, 1, 10)
        assert batch.to_pydict() == {"w": [[1, 2]], "b": [True], "x": [0.5]}
        assert Path(folder).parent == tmp_path
        cache._remove_folder(files.store, folder)
        assert not Path(folder).exists()


def test_without_a_folder_the_error_names_the_setting(spark: SparkSession) -> None:
    spark.conf.unset(cache.PARENT_CACHE_DIR_URL_CONF)
    with pytest.raises(DataError, match=rf"spark\.conf\.set\('{cache.PARENT_CACHE_DIR_URL_CONF}', 'file:///"):
        cache._open_cache_store(spark)


def test_processes_have_folders_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(cache.PARENT_CACHE_DIR_URL_CONF, f"file:{tmp_path}/")
    store = cache._open_cache_store(spark)
    assert store.get_train_data_path() == f"{tmp_path}/{cache._OWN_NAME}"
    assert cache._OWN_NAME.startswith("converter-20")


def test_a_folder_is_removed_once_and_a_failure_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cache.atexit, "register", lambda *arguments: registered.append(arguments))
    store = FilesystemStore(str(tmp_path))
    folder = f"{tmp_path}/rows"
    Path(folder).mkdir()
    cache._remove_at_exit(store, folder)
    cache._remove_at_exit(store, folder)
    ((remove, *arguments),) = registered
    remove(*arguments)
    assert not Path(folder).exists()
    remove(*arguments)  # deleted before the exit

    class Away(FilesystemStore):
        def exists(self, path: str) -> bool:
            raise OSError("the server is away")

    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    cache._remove_folder(Away(str(tmp_path)), folder)
    assert f"{folder} could not be removed: the server is away" in caplog.text
