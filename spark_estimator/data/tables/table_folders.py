"""Refuses folders of tables whose metadata lists the present files: removed rows are in the files beside these."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PurePath

from spark_estimator.data.tables import delta
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore
from spark_estimator.store.filesystem import Entry

_AUTHORITY = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*")
# Of catalogs, with a UUID; of file systems, with a version. Either may be compressed.
_ICEBERG_METADATA = re.compile(r"(?:\d+-[0-9a-fA-F-]{36}|v\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HUDI_METADATA = ".hoodie/hoodie.properties"
# Folders below a Delta table's: of partitions, of random prefixes, of the change data feed.
_DELTA_FOLDER = re.compile(r"[^/=]+=[^/]*|\w{1,2}|_change_data")
_REMEDIES = {
    "Delta": "spark.read.format('delta').load({table!r}). make_torch_dataloader({table!r}, ...) reads the log itself",
    "Hudi": "spark.read.format('hudi').load({table!r})",
    "Iceberg": "spark.table(...) with its name in the catalog",
}


def check_outside_tables(
    path: str, folder: str, entries: list[Entry], store: FilesystemStore, formats: dict[str, frozenset[str]]
) -> None:
    """Refuse a folder that is in a Delta, Hudi or Iceberg table, or is one; a file that is named itself is accepted.

    A folder below a table that the table's format would not make there is not a part of the table.

    Args:
        path: as the user has written it.
        folder: the same as the store writes it.
        entries: of the folder.
        formats: folder -> what it is the folder of, of earlier calls; is extended.

    Raises:
        DataError: it is part of a table; the text names it, and how to read it.
    """
    if [entry.path for entry in entries] == [folder]:
        return
    parents = _list_parents(folder)
    for parent in parents:
        if parent not in formats:
            formats[parent] = frozenset(kind for kind, is_table in _TABLES.items() if _is_of(is_table, parent, store))
        inner = parents[0][len(parent) :].strip("/")
        kind = next(
            (kind for kind in sorted(formats[parent]) if _may_hold(kind, inner.split("/") if inner else [])), ""
        )
        if kind:
            remedy = _REMEDIES[kind].format(table=parent)
            raise DataError(
                f"{path} belongs to the {kind} table {parent}. The table's files also hold rows that were deleted, and "
                f"its metadata lists the files that count. Read it with Spark, {remedy}. A DataFrame goes to fit(df) "
                "or make_spark_converter(df); readers of files need a copy: df.write.parquet(other_folder)."
            )


def _list_parents(folder: str) -> list[str]:
    """Return a folder and all folders that it is in, innermost first."""
    authority = _AUTHORITY.match(folder)
    if authority is None:
        innermost = PurePath(os.path.realpath(folder))
        return [str(innermost), *map(str, innermost.parents)]
    names = [name for name in folder[authority.end() :].split("/") if name]
    return ["/".join([authority[0], *names[:count]]) for count in range(len(names), -1, -1)]


def _may_hold(kind: str, inner: list[str]) -> bool:
    """Return whether a table of this format has files in this folder, whose names below the table's are given."""
    if kind == "Delta":
        return all(map(_DELTA_FOLDER.fullmatch, inner))
    return kind == "Hudi" or not inner or inner[0] == "data"


def _is_of(is_table: Callable[[str, FilesystemStore], bool], folder: str, store: FilesystemStore) -> bool:
    try:
        return is_table(folder, store)
    except Exception:  # each file system has other errors where it forbids to look
        return False


def _is_delta(folder: str, store: FilesystemStore) -> bool:
    if not delta.is_delta(folder, store):
        return False
    return any(
        entry.path.endswith((".json", ".parquet", "_last_checkpoint"))
        for entry in store.entries(f"{folder}/{delta.LOG}")
    )


def _is_hudi(folder: str, store: FilesystemStore) -> bool:
    return store.exists(f"{folder}/{_HUDI_METADATA}")


def _is_iceberg(folder: str, store: FilesystemStore) -> bool:
    names = [entry.path.rpartition("/")[2] for entry in store.entries(f"{folder}/metadata")]
    return any(map(_ICEBERG_METADATA.fullmatch, names))


_TABLES = {"Delta": _is_delta, "Hudi": _is_hudi, "Iceberg": _is_iceberg}
