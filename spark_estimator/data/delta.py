"""The files of a Delta table's present version, read from its log without Spark.

A Delta table's folder also holds files that a later version has removed: its log lists the present ones. The log is
``_delta_log``: a JSON file for each version, and now and then a checkpoint, a Parquet file with the state so far.
Values of partition columns are in the log, not in the files; a column that was added after a file was written is null
in it. Deletion vectors and column mapping are refused, as are reader features that this module does not know.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from spark_estimator.data.numbers import get_kind
from spark_estimator.data.parquet_file import DataFile, name_errors, to_local_form
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
# Table features that are accepted: the data shows whether a file has deletion vectors, or another type of a column.
_KNOWN_FEATURES = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck",
}  # fmt: skip
_TYPES: dict[str, pyarrow.DataType] = {
    "byte": pyarrow.int8(),
    "short": pyarrow.int16(),
    "integer": pyarrow.int32(),
    "long": pyarrow.int64(),
    "float": pyarrow.float32(),
    "double": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "string": pyarrow.string(),
    "date": pyarrow.date32(),
    "binary": pyarrow.binary(),
    "timestamp": pyarrow.timestamp("us", "UTC"),
    "timestamp_ntz": pyarrow.timestamp("us"),
}


@dataclass
class _State:
    """What the log contains, version after version.

    Attributes:
        files: by path as the log writes it, the ``add`` action of each file of the table.
        metadata, protocol: the last ones.
    """

    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Apply one action of a version or of a checkpoint."""
        if (removed := action.get("remove")) is not None:
            self.files.pop(removed["path"], None)
        elif (added := action.get("add")) is not None:
            self.files[added["path"]] = added
        self.metadata = action.get("metaData") or self.metadata
        self.protocol = action.get("protocol") or self.protocol


def is_delta(folder: str, store: FilesystemStore) -> bool:
    """Return whether a folder is a Delta table."""
    return store.exists(f"{folder}/{LOG}")


def find_table_files(folder: str, store: FilesystemStore) -> tuple[tuple[DataFile, ...], Mapping[str, str]]:
    """Return the files of the table's last version, by path, and the kinds of all its columns, in the order of its
    schema.

    Raises:
        DataError: the log is incomplete or damaged, or the table uses what this module does not read.
    """
    state = _read_log(folder, store)
    _check_features(folder, state)
    schema = json.loads(state.metadata["schemaString"])["fields"]
    types = {column["name"]: _to_arrow_type(column["type"]) for column in schema}
    partitions = list(state.metadata.get("partitionColumns") or ())
    result = []
    for path in sorted(state.files):
        added = state.files[path]
        if added.get("deletionVector"):
            raise DataError(
                f"{folder}: the file {path} has a deletion vector, which only Delta's own readers apply. Rewrite the "
                "table (REORG TABLE ... APPLY (PURGE)), or read it with Spark: fit(df), or df.write.parquet()."
            )
        name = unquote(path)
        whole = to_local_form(name) if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:/|/", name) else f"{folder}/{name}"
        file = DataFile.read(whole, store, int(added["size"]))
        values = dict(added.get("partitionValues") or {})
        constants = {
            column: _parse_partition_value(folder, column, values.get(column), types[column]) for column in partitions
        }
        missing = [column for column in types if column not in file.kinds and column not in constants]
        constants.update({column: pyarrow.scalar(None, types[column]) for column in missing if types[column]})
        result.append(file.add_constants(constants))
    kinds = {column: _find_kind(column, kind, result) for column, kind in types.items()}
    return tuple(result), kinds


def _read_log(folder: str, store: FilesystemStore) -> _State:
    names = [entry.path.rpartition("/")[2] for entry in store.entries(f"{folder}/{LOG}")]
    commits = sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))
    base, parts = _find_last_checkpoint(names)
    if base is None and commits[:1] != [0] and any(".checkpoint." in name for name in names):
        raise DataError(
            f"{folder}/{LOG}: its checkpoints are of the V2 format, or incomplete, and cannot be read here; and the "
            "versions before them no longer exist. Read the table with Spark."
        )
    state = _State()
    for name in parts:
        for action in _read_checkpoint(f"{folder}/{LOG}/{name}", store):
            state.apply(action)
    first = 0 if base is None else base + 1
    newer = [version for version in commits if version >= first]
    if newer != list(range(first, first + len(newer))):
        raise DataError(f"{folder}/{LOG} lacks versions: after {first} it has {newer[:5]}...: the table is damaged.")
    for version in newer:
        path = f"{folder}/{LOG}/{version:020}.json"
        with name_errors(path):
            for line in store.read(path).splitlines():
                if line.strip():
                    state.apply(json.loads(line))
    if not state.metadata or not state.protocol:
        raise DataError(f"{folder}/{LOG} has no version of a table in it.")
    return state


def _find_last_checkpoint(names: list[str]) -> tuple[int | None, list[str]]:
    """Return the version of the last complete checkpoint, and its files."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    complete = [(version, count) for (version, count), files in parts.items() if len(files) == count]
    if not complete:
        return None, []
    last = max(complete)
    return last[0], sorted(parts[last])


def _read_checkpoint(path: str, store: FilesystemStore) -> Iterator[dict[str, Any]]:
    with name_errors(path), store.open(path) as raw:
        opened = pyarrow.parquet.ParquetFile(raw)
        names = opened.schema_arrow.names
        columns = [name for name in ("add", "metaData", "protocol", "sidecar") if name in names]
        for batch in opened.iter_batches(columns=columns):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                if row.get("sidecar"):
                    raise DataError(f"{path} is a checkpoint of the V2 format. Read the table with Spark.")
                yield row


def _check_features(folder: str, state: _State) -> None:
    version = int(state.protocol.get("minReaderVersion", 1))
    features = set(state.protocol.get("readerFeatures") or ())
    unknown = sorted(features - _KNOWN_FEATURES)
    if version > 3 or unknown:
        raise DataError(
            f"{folder} is a Delta table that needs {', '.join(unknown) or f'reader version {version}'}, which is not "
            "known here. Read it with Spark: fit(df), or df.write.parquet(path)."
        )
    mode = dict(state.metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise DataError(
            f"{folder} is a Delta table with column mapping (delta.columnMapping.mode={mode}): its files name columns "
            "otherwise. Read it with Spark: fit(df), or df.write.parquet(path)."
        )


def _to_arrow_type(kind: Any) -> pyarrow.DataType | None:
    """Return the Arrow type of a column; None: it is found in the files alone."""
    if isinstance(kind, dict):
        item = _to_arrow_type(kind["elementType"]) if kind.get("type") == "array" else None
        return None if item is None else pyarrow.list_(item)
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return pyarrow.decimal128(int(match[1]), int(match[2]))
    return _TYPES.get(kind)


def _find_kind(column: str, kind: pyarrow.DataType | None, files: list[DataFile]) -> str:
    if kind is not None:
        return get_kind(kind)
    return next((file.kinds[column] for file in files if column in file.kinds), "struct")


def _parse_partition_value(folder: str, column: str, text: str | None, kind: pyarrow.DataType | None) -> pyarrow.Scalar:
    """Return a value as the log writes it; the empty text is null."""
    if kind is None:
        raise DataError(f"{folder}: the partition column {column!r} has a type that is not known.")
    if text is None or text == "":
        return pyarrow.scalar(None, kind)
    with name_errors(f"{folder}/{LOG}"):
        if pyarrow.types.is_timestamp(kind):
            moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
            if kind.tz and moment.tzinfo is None:
                raise DataError(
                    f"{folder}: the partition column {column!r} has the timestamp {text!r}, whose time zone the log "
                    "does not have. Read the table with Spark."
                )
            return pyarrow.scalar(moment, kind)
        if pyarrow.types.is_binary(kind):
            return pyarrow.scalar(text.encode("utf-8"), kind)
        return pyarrow.scalar(text).cast(kind)
