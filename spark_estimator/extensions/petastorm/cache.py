"""The folder to which the converter writes rows of DataFrames that are more than just files; removed at exit."""

from __future__ import annotations

import atexit
import datetime
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_estimator.data.columns import Readable, make_raw
from spark_estimator.data.materialize import materialize
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.parquet_file import open_store, to_local_form
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore, Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The setting of the Spark session that names the folder, or URL.
PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
# Of this process: what it has written is its own to remove.
_OWN_NAME = f"converter-{datetime.datetime.now():%Y%m%d%H%M%S}-{secrets.token_hex(8)}"
_written: set[str] = set()
_SPARK_TYPES = {"float32": "float", "float64": "double"}
_log = logging.getLogger(__name__)


def write_frame(frame: DataFrame, columns: Sequence[str], dtype: str | None) -> tuple[DataFiles, str]:
    """Return the columns as files, and their folder, which is removed when this process ends.

    They are written now or, for the same plan, before.

    Args:
        columns: by name.
        dtype: "float32" or "float64" for fractions and vectors; None: as they are.

    Raises:
        DataError: no folder was named, it is not the same for the executors, or there are no rows.
    """
    store = _open_cache_store(frame.sparkSession)
    files = materialize(frame, [_convert_column(frame, name, dtype) for name in columns], store, of_chance=True)
    folder = files.files[0].path.rpartition("/")[0]
    _remove_at_exit(store, folder)
    return files, folder


@dataclass(frozen=True)
class _Unchanged(Readable):
    """A column that is written as it is: decimals, dates and texts, too."""

    @property
    def stored(self) -> Column:
        assert self.expression is not None, self.name
        return self.expression.alias(self.name)


def _convert_column(frame: DataFrame, name: str, dtype: str | None) -> Readable:
    """Return a column as it is written: vectors as arrays, and fractions in that precision."""
    column = make_raw(frame.schema, name)
    expression, kind = column.expression, column.kind
    assert expression is not None
    if kind == "vector" or (dtype is not None and kind in ("float", "double", "array<float>", "array<double>")):
        element = _SPARK_TYPES[dtype or "float64"]
        kind = f"array<{element}>" if column.is_array else element
        expression = expression.cast(kind)
    return _Unchanged(name, column.is_array, "", expression, kind)


def _open_cache_store(spark: SparkSession) -> FilesystemStore:
    conf = PARENT_CACHE_DIR_URL_CONF
    parent = spark.conf.get(conf, None)
    if not parent:
        raise DataError(
            "the DataFrame is more than just Parquet files, so its rows have to be written, and no folder for that is "
            f"named: spark.conf.set({conf!r}, 'file:///...'), one that the driver and all executors share "
            "('/Volumes/...', 'dbfs:/...' on Databricks)."
        )
    folder = open_store(to_local_form(parent)).prefix_path
    store = Store.create(folder, train_path=f"{folder}/{_OWN_NAME}")
    assert isinstance(store, FilesystemStore)
    return store


def _remove_at_exit(store: FilesystemStore, folder: str) -> None:
    if folder not in _written:
        _written.add(folder)
        atexit.register(_remove_folder, store, folder)


def _remove_folder(store: FilesystemStore, folder: str) -> None:
    try:
        if store.exists(folder):
            store.remove(folder)
    except Exception as error:  # the process ends; the name of the remaining folder shows its purpose
        _log.warning("%s could not be removed: %s", folder, error)
