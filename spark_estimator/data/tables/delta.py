"""The files of one version of a Delta table: the package `deltalake` reads the log, and ranks read the files.

A Delta table's folder also holds files that a later version has removed: its log lists the present ones, with the
values of partition columns. A `DataFile` has what the log records of a file: rows that a deletion vector has left,
names and types that differ from the table's, columns that were added later and are null.

`deltalake` gives any version's schema with its mapping, its files (`DeltaTable.get_add_actions`) and the rows that are
left in each (`deletion_vectors`). Its own scans promise no order of rows, so that ranks could not divide them.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.compute

from spark_estimator.data.numbers import get_kind
from spark_estimator.data.parquet_file import DataFile, LiveRows, to_local_form
from spark_estimator.env import Settings
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore

LOG = "_delta_log"
#: A version of a table: its number, or a moment, in ISO 8601 if it is a text. None: the last one.
Version = int | str | datetime.datetime | None
# Features of tables that are read here; the log shows which columns and files have them.
_KNOWN_FEATURES = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck", "variantType", "variantType-preview",
}  # fmt: skip
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/|/")
_OPTIONS = {
    "key": "aws_access_key_id", "secret": "aws_secret_access_key", "endpoint_url": "aws_endpoint_url",
    "region_name": "aws_region", "account_name": "azure_storage_account_name", "sas_token": "azure_storage_sas_token",
    "account_key": "azure_storage_account_key",
}  # fmt: skip
_PHYSICAL, _NUMBER, _CHANGES = (
    f"delta.{name}".encode() for name in ("columnMapping.physicalName", "columnMapping.id", "typeChanges")
)


def is_delta(folder: str, store: FilesystemStore) -> bool:
    """Return whether a folder is a Delta table."""
    return store.exists(f"{folder}/{LOG}")


def find_table_files(folder: str, store: FilesystemStore, version: Version = None) -> tuple[DataFile, ...]:
    """Return the files of a version, by path. They have all columns of its schema, in its order.

    Raises:
        DataError: the log cannot be read, or the table uses what is not read here.
    """
    log = read_log(folder, version, store.storage_options)
    paths = locate_files(folder, log)
    sizes = log["size_bytes"].to_pylist()
    return make_files(log, [DataFile.read(path, store, size) for path, size in zip(paths, sizes, strict=True)])


def read_log(folder: str, version: Version = None, storage_options: Mapping[str, Any] | None = None) -> pyarrow.Table:
    """Return the files of a version by path: `path`, `size_bytes`, `partition` if the table has such columns, and
    `live`, which rows a deletion vector has left. The metadata has the `version`, how columns are `mapped`, and the
    `schema` of the table, as Arrow writes it.

    Raises:
        DataError: as `find_table_files`.
    """
    try:
        import deltalake
    except ImportError as error:
        raise DataError(
            f"{folder} is a Delta table, and the package that reads its log is not installed here: pip install "
            "'deltalake>=1.6.6' (the extra delta). Or read it with Spark: fit(df), or df.write.parquet(path)."
        ) from error
    try:
        table = deltalake.DeltaTable(folder, storage_options=_translate_options(storage_options or {}))
        version = _read_version(folder, version, table.version())
        if version is not None:
            table.load_as_version(version)
        if isinstance(version, datetime.datetime):
            _check_moment(table, version)
        _check_table(folder, table)
        files = pyarrow.table(table.get_add_actions())
        live = _find_live_rows(table, files["path"].to_pylist())
        metadata = {
            "version": str(table.version()),
            "mapped": _find_mapping(table),
            "schema": pyarrow.schema(table.schema()).serialize().to_pybytes(),
        }
    except DataError:
        raise
    except Exception as error:  # its own, of the operating system, ValueError
        at = "" if version is None else f", version {version},"
        reason = f"{type(error).__name__}: {str(error).strip(' .')}"
        raise DataError(
            f"{folder}: the log of the Delta table{at} cannot be read: {reason}. Read it with Spark: fit(df), or "
            "df.write.parquet(path)."
        ) from error
    files = files.select([name for name in ("path", "size_bytes", "partition") if name in files.column_names])
    return files.append_column("live", live).sort_by("path").replace_schema_metadata(metadata)


def locate_files(folder: str, log: pyarrow.Table) -> list[str]:
    """Return the files' paths, of this machine, or URLs.

    Raises:
        DataError: a file is neither below the table's folder nor below one that the user allows.
    """
    allowed = [_normalize(root) for root in (folder, *Settings.read().table_folders)]
    result = []
    for path in log["path"].to_pylist():
        name = unquote(path)
        whole = to_local_form(name) if _URL.match(name) else f"{folder}/{name}"
        if not any(_normalize(whole).startswith(f"{root}/") for root in allowed):
            raise DataError(
                f"{folder}: the log of the Delta table names the file {name}, which is not below its folder. If that "
                "is meant (a shallow clone's files are elsewhere), name a folder that it is in by "
                "SPARK_ESTIMATOR_TABLE_FOLDERS; or read the table with Spark."
            )
        result.append(whole)
    return result


def make_files(log: pyarrow.Table, footers: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Return the files as the table has them.

    Args:
        log: of `read_log`.
        footers: the same files, as they are stored.

    Raises:
        DataError: a file and its deletion vector do not fit together.
    """
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(log.schema.metadata[b"schema"]))
    mapped = log.schema.metadata[b"mapped"].decode()
    partitions = log["partition"].combine_chunks() if "partition" in log.column_names else None
    result = []
    for number, footer in enumerate(footers):
        constants = {}
        if partitions is not None:
            constants = {field.name: partitions.field(field.name)[number] for field in partitions.type}
        result.append(_make_file(footer, schema, mapped, constants, log["live"][number].values))
    return tuple(result)


def _make_file(
    footer: DataFile, schema: pyarrow.Schema, mapped: str, partition: Mapping[str, pyarrow.Scalar], live: Any
) -> DataFile:
    names = {number: name for name, number in footer.ids.items()}
    kinds, stored, types, constants = {}, {}, {}, {}
    for column in schema:
        metadata = column.metadata or {}
        name = column.name if mapped == "none" else metadata[_PHYSICAL].decode()
        if mapped == "id" and names:
            name = names.get(int(metadata[_NUMBER]), "")
        kinds[column.name] = get_kind(column.type)
        if column.name in partition:
            constants[column.name] = partition[column.name].cast(column.type)
        elif name not in footer.kinds:
            constants[column.name] = pyarrow.scalar(None, column.type)
        else:
            if name != column.name:
                stored[column.name] = name
            if footer.kinds[name] != kinds[column.name]:
                if _CHANGES in metadata:
                    types[column.name] = column.type
                else:
                    kinds[column.name] = footer.kinds[name]  # a reader of the column refuses it
    live_rows: list[LiveRows | None] = []
    if live is not None:
        if len(live) > footer.rows:
            raise DataError(
                f"{footer.path} has {footer.rows} rows, and its deletion vector {len(live)}: it has changed."
            )
        # The rows after those that it mentions are left.
        whole = pyarrow.concat_arrays([live, pyarrow.repeat(True, footer.rows - len(live))])
        start = 0
        for rows in footer.groups:
            live_rows.append(LiveRows.from_mask(whole.slice(start, rows)))
            start += rows
    groups = tuple(
        left.rows if left is not None else rows
        for rows, left in zip(footer.groups, live_rows or [None] * len(footer.groups), strict=True)
    )
    return replace(
        footer, groups=groups, kinds=kinds, constants=constants, stored=stored, types=types, live=tuple(live_rows)
    )


def _check_table(folder: str, table: Any) -> None:
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    unknown = sorted(features - _KNOWN_FEATURES)
    if protocol.min_reader_version > 3 or unknown:
        needed = ", ".join(unknown) or f"reader version {protocol.min_reader_version}"
        raise DataError(
            f"{folder} is a Delta table that needs {needed}, which is not known here. Read it with Spark: fit(df), or "
            "df.write.parquet(path)."
        )
    if "deletionVectors" in features and features & {"typeWidening", "typeWidening-preview"}:
        raise DataError(
            f"{folder} is a Delta table with both typeWidening and deletionVectors, which deltalake does not read "
            "together. Read it with Spark: fit(df), or df.write.parquet(path)."
        )
    schema = pyarrow.schema(table.schema())
    moments = [
        name
        for name in table.metadata().partition_columns
        if pyarrow.types.is_timestamp(schema.field(name).type) and schema.field(name).type.tz
    ]
    for values in table.partitions() if moments else ():
        name = next((name for name in moments if values[name] and not values[name].endswith("Z")), None)
        if name is not None:
            raise DataError(
                f"{folder}: the partition column {name!r} has the timestamp {values[name]!r}, whose time zone the log "
                "does not have. Read the table with Spark."
            )


def _find_mapping(table: Any) -> str:
    """Return whether columns have others of their names in the files, by "name" or by "id"; else "none"."""
    protocol = table.protocol()
    if protocol.min_reader_version != 2 and "columnMapping" not in (protocol.reader_features or ()):
        return "none"  # a table may have the property, and not the feature
    return str(table.metadata().configuration.get("delta.columnMapping.mode", "none"))


def _check_moment(table: Any, moment: datetime.datetime) -> None:
    """Raise ValueError for a moment before the first version, for which deltalake returns that one."""
    zone = datetime.timezone.utc
    written = datetime.datetime.fromtimestamp(int(table.history(1)[0]["timestamp"]) / 1000, zone)
    if (moment if moment.tzinfo else moment.replace(tzinfo=zone)) < written:
        raise ValueError(f"the first version that is left is of {written.isoformat()}")


def _read_version(folder: str, version: Version, last: int) -> int | datetime.datetime | None:
    """Return a version, or a moment, that the user has named.

    Raises:
        DataError: it is neither, or the table lacks that version.
    """
    if isinstance(version, str):
        try:
            return datetime.datetime.fromisoformat(version.replace("Z", "+00:00"))
        except ValueError as error:
            raise DataError(
                f"version={version!r} of the Delta table {folder} is neither a number nor a moment in ISO's form, such "
                "as '2026-01-31T12:00:00'."
            ) from error
    if isinstance(version, int) and not 0 <= version <= last:
        raise DataError(f"the Delta table {folder} has no version {version}: they are 0 to {last}.")
    return version


def _find_live_rows(table: Any, paths: Sequence[str]) -> pyarrow.Array:
    """Return, for each path, which rows are left; null: all."""
    kind = pyarrow.list_(pyarrow.bool_())
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return pyarrow.nulls(len(paths), kind)
    vectors = pyarrow.table(table.deletion_vectors()).combine_chunks()
    root = unquote(table.table_uri).rstrip("/")
    numbers = {_normalize(unquote(uri)): number for number, uri in enumerate(vectors["filepath"].to_pylist())}
    names = (unquote(path) for path in paths)
    positions = [numbers.pop(_normalize(name if _URL.match(name) else f"{root}/{name}"), None) for name in names]
    if numbers:
        raise DataError(f"{root}: there is a deletion vector for {next(iter(numbers))}, which is no file of the table.")
    return vectors["selection_vector"].combine_chunks().take(pyarrow.array(positions, pyarrow.int64())).cast(kind)


def _normalize(path: str) -> str:
    """Return a path or URL without ``..`` and double slashes; of this machine, without symbolic links."""
    scheme, mark, rest = to_local_form(path).rpartition("://")
    return f"{scheme}{mark}{posixpath.normpath(rest)}" if mark else os.path.realpath(rest)


def _translate_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return fsspec's options in deltalake's names; what is not known to both comes from the environment."""
    flat = {**options, **(options.get("client_kwargs") or {})}
    result = {_OPTIONS[name]: str(value) for name, value in flat.items() if name in _OPTIONS and value is not None}
    if str(flat.get("endpoint_url", "")).startswith("http://"):
        result["aws_allow_http"] = "true"
    return result
