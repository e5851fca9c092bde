"""Refuses folders of tables whose metadata lists the present files: removed rows are in the files beside these."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import PurePath

from spark_estimator.data import delta
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore
from spark_estimator.store.filesystem import Entry

_AUTHORITY = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*")
# Of catalogs, with a UUID; of file systems, with a version. Either may be compressed.
_ICEBERG_METADATA = re.compile(r"(?:\d+-[0-9a-fA-F-]{36}|v\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HUDI_METADATA = ".hoodie"
_REMEDIES = {
    "Delta": "spark.read.format('delta').load({table!r}). make_torch_dataloader({table!r}, ...) reads the log itself",
    "Hudi": "spark.read.format('hudi').load({table!r})",
    "Iceberg": "spark.table(...) with its name in the catalog",
}


def check_outside_tables(path: str, folder: str, entries: list[Entry], store: FilesystemStore) -> None:
    """Refuse a folder that is in a Delta, Hudi or Iceberg table, or is one; a file that is named itself is accepted.

    Args:
        path: as the user has written it.
        folder: the same as the store writes it.
        entries: of the folder.

    Raises:
        DataError: it is part of a table; the text names it, and how to read it.
    """
    if [entry.path for entry in entries] == [folder]:
        return
    for parent in _with_parents(folder):
        kind = ""
        with contextlib.suppress(Exception):  # each file system has other errors where it forbids to look
            kind = _format_of(parent, store)
        if kind:
            remedy = _REMEDIES[kind].format(table=parent)
            raise DataError(
                f"{path} belongs to the {kind} table {parent}. The table's files also hold rows that were deleted, and "
                f"its metadata lists the files that count. Read it with Spark, {remedy}. A DataFrame goes to fit(df) "
                "or make_spark_converter(df); readers of files need a copy: df.write.parquet(other_folder)."
            )


def _with_parents(folder: str) -> list[str]:
    """Return a folder and all folders that it is in, innermost first."""
    authority = _AUTHORITY.match(folder)
    if authority is None:
        innermost = PurePath(os.path.realpath(folder))
        return [str(innermost), *map(str, innermost.parents)]
    names = [name for name in folder[authority.end() :].split("/") if name]
    return ["/".join([authority[0], *names[:count]]) for count in range(len(names), -1, -1)]


def _format_of(folder: str, store: FilesystemStore) -> str:
    """Return the format of the table whose own folder this is; "" where it is none."""
    if delta.is_delta(folder, store):
        return "Delta"
    if store.exists(f"{folder}/{_HUDI_METADATA}"):
        return "Hudi"
    try:
        names = [entry.path.rpartition("/")[2] for entry in store.entries(f"{folder}/metadata")]
    except FileNotFoundError:
        return ""
    return "Iceberg" if any(_ICEBERG_METADATA.fullmatch(name) for name in names) else ""
