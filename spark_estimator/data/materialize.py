"""A DataFrame's rows as Parquet files in a store: written once, complete or not at all, and read by ranks repeatedly.

Each task writes one file, from its beginning to its end, under a name that no other attempt has. The *manifest* lists
the files of a data set. The driver writes it when all files are there, because object stores have no rename that could
make a folder appear at once. A folder with neither a manifest nor Spark's ``_SUCCESS`` is incomplete, or is being
written, and is not read. While the driver waits for the tasks, a marker file is in the folder: when one task fails,
Spark ends the others a moment later. They find that the marker is missing, and remove their files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from spark_estimator.data.columns import Readable
from spark_estimator.data.numbers import get_kind
from spark_estimator.data.parquet import DataFiles, find_files
from spark_estimator.data.parquet_file import DataFile
from spark_estimator.data.quoting import number_columns, rename_columns
from spark_estimator.data.tables import delta
from spark_estimator.errors import DataError, find_task_error
from spark_estimator.log import get_logger
from spark_estimator.store import FilesystemStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# In the text of a task that could not write.
_NOT_WRITTEN = "cannot be written on host"
MANIFEST = "_spark_estimator.json"
_IN_THE_MAKING = "_spark_estimator_writes_"
_VERSION = 1
_TRIES = 3
# The bytes of one row group, which is in memory while it is written.
_GROUP_BYTES = 32 << 20
_FILE_RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
# Leaves of a plan whose rows stay what they are. An RDD may read its source again each time.
_CONSTANT = ("LocalRelation", "Range", "OneRowRelation")
_OF_THE_MOMENT = re.compile(r"current_|now\(|localtimestamp", re.IGNORECASE)

_log = get_logger(__name__)


@dataclass(frozen=True)
class _PartWriter:
    """Writes the rows of one Spark task as one file. It is pickled.

    Attributes:
        store: which has the folder.
        folder: in which the driver waits for it.
        mark: the file that is there while it does.
        names: [columns] under which they are written.
    """

    store: FilesystemStore
    folder: str
    mark: str
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        name = f"part-{partition:05d}-{secrets.token_hex(8)}.parquet"
        reports = self._write(
            name, partition, (rename_columns(batch, self.names) for batch in batches if batch.num_rows)
        )
        yield pyarrow.RecordBatch.from_pydict({"report": pyarrow.array(reports, pyarrow.string())})

    def _write(self, name: str, partition: int, batches: Iterator[pyarrow.RecordBatch]) -> list[str]:
        first = next(batches, None)
        if first is None:
            return []
        groups: list[int] = []
        path = f"{self.folder}/{name}"
        try:
            self._check_wanted()
            with self.store.open(path, "wb", make_folder=False) as file:
                with pyarrow.parquet.ParquetWriter(file, first.schema, use_dictionary=False) as writer:
                    pending: list[pyarrow.RecordBatch] = []
                    for batch in itertools.chain([first], batches):
                        pending.append(batch)
                        if sum(batch.nbytes for batch in pending) >= _GROUP_BYTES:
                            groups.append(_write_group(writer, pending))
                    if pending:
                        groups.append(_write_group(writer, pending))
                size = file.tell()
                file.flush()
                with contextlib.suppress(io.UnsupportedOperation):  # another file system's file
                    os.fsync(file.fileno())
            self._check_wanted()
        except Exception as error:  # each kind of store has its own errors
            with contextlib.suppress(Exception):
                self.store.remove(path)
            raise DataError(
                f"{path} {_NOT_WRITTEN} {socket.gethostname()} after {sum(groups)} rows: {type(error).__name__}: "
                f"{error}"
            ) from error
        kinds = {column.name: get_kind(column.type) for column in first.schema}
        return [json.dumps({"partition": partition, "name": name, "size": size, "groups": groups, "kinds": kinds})]

    def _check_wanted(self) -> None:
        if not self.store.exists(self.mark):
            raise DataError(
                f"{self.mark}, which the driver has made, is not there: it does not wait for the rows any more, or the "
                "store's path is another place here"
            )


def _write_group(writer: Any, batches: list[pyarrow.RecordBatch]) -> int:
    table = pyarrow.Table.from_batches(batches)
    batches.clear()
    writer.write_table(table, row_group_size=max(1, table.num_rows))
    return int(table.num_rows)


def materialize(
    frame: DataFrame, columns: Sequence[Readable], store: FilesystemStore, of_chance: bool = False
) -> DataFiles:
    """Return the columns of a DataFrame as files of the store: those that a fit before has written, or new ones.

    They keep their numbers as Spark has them, nulls included; vectors become arrays of floats, dates and
    timestamps numbers. Rows are those of one moment: they are used again only where the plan, and the files below
    it, are known to be the same.

    Args:
        of_chance: as in `compute_fingerprint`.

    Raises:
        DataError: the store's folder is not the same for the driver and the executors.
    """
    distinct = list({column.name: column for column in columns}.values())
    fingerprint = compute_fingerprint(frame, distinct, of_chance)
    folders = find_folders(store)
    for folder in folders.values() if fingerprint is not None else ():
        if not store.exists(f"{folder}/{MANIFEST}"):
            continue  # another program's, incomplete, or being written
        if read_manifest(store, folder).get("fingerprint") == fingerprint:
            _log.info("the rows of this DataFrame are in %s already", folder)
            return find_data_set(store, folder)
    folder, mark = _claim_folder(store, folders)
    return _write_frame(frame, distinct, store, folder, mark, fingerprint)


def write_copy(frame: DataFrame, columns: Sequence[Readable], store: FilesystemStore, parts: int) -> DataFiles:
    """Return the columns of a DataFrame as new files of the store, which nothing else reads: the caller removes them.

    Args:
        parts: how many files. The values of a row determine its place, so that equal rows make equal files.

    Raises:
        DataError: as `materialize`.
    """
    folder = f"{store.get_train_data_path()}.copy-{secrets.token_hex(8)}"
    mark = f"{folder}/{_IN_THE_MAKING}"
    with _explain_refusal(folder):
        store.write(mark, b"")
    distinct = list({column.name: column for column in columns}.values())
    return _write_frame(frame, distinct, store, folder, mark, None, parts)


def find_folders(store: FilesystemStore) -> dict[int | None, str]:
    """Return the folders of training data in a store, by their numbers; that without one is None's, and the first.

    Raises:
        DataError: the store cannot be reached.
    """
    first = store.get_train_data_path()
    parent, _, name = first.rpartition("/")
    try:
        entries = store.entries(parent)
    except FileNotFoundError:
        return {}
    except Exception as error:  # each kind of store has its own errors
        raise DataError(
            f"the store's folder {parent} cannot be listed on host {socket.gethostname()}: {type(error).__name__}: "
            f"{error}"
        ) from error
    result: dict[int | None, str] = {}
    for entry in entries:
        match = re.fullmatch(re.escape(name) + r"(?:\.(\d+))?", entry.path.rstrip("/").rpartition("/")[2])
        if match is not None:
            index = None if match[1] is None else int(match[1])
            result[index] = store.get_train_data_path(index)
    return dict(sorted(result.items(), key=lambda item: -1 if item[0] is None else item[0]))


def compute_fingerprint(frame: DataFrame, columns: Sequence[Readable], of_chance: bool = False) -> str | None:
    """Return a hash that is equal for equal rows; None for a plan whose rows may change.

    A plan has one if it uses neither random numbers nor the time, and reads files that have not changed or rows
    that are in the plan itself. It is valid for the session only, as is Spark's comparison of plans.

    Args:
        of_chance: the plan may use random numbers: the rows drawn first are kept for this same plan. (Spark
            treats each function of Spark ML as random, `VectorAssembler`'s too.)
    """
    try:
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            return None
        plan = frame._jdf.queryExecution().analyzed()
        if not (of_chance or plan.deterministic()):
            return None
        if not plan.subqueriesAll().isEmpty() or _OF_THE_MOMENT.search(plan.toString()):
            return None
        leaves = plan.collectLeaves()
        files: list[list[Any]] = []
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            kind = leaf.getClass().getName()
            if kind == _FILE_RELATION:
                result = leaf.relation().location().allFiles()
                for index in range(result.size()):
                    file = result.apply(index)
                    files.append([file.getPath().toString(), file.getLen(), file.getModificationTime()])
            elif kind.rpartition(".")[2] not in _CONSTANT:
                return None
        identity = [
            _get_session(frame),
            frame.semanticHash(),
            plan.canonicalized().toString(),
            frame.schema.json(),
            sorted(files),
            [
                (column.name, column.kind, column.dtype) for column in columns
            ],  # a raw column has no dtype, and other values
        ]
    except Exception as error:  # a plan that is not open to Python, or another version's
        _log.debug("no fingerprint: %s", error)
        return None
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _claim_folder(store: FilesystemStore, existing: Collection[int | None]) -> tuple[str, str]:
    """Return a new folder of training data that is this driver's alone, and its mark in it.

    Each driver writes its mark before it lists the folder. So of two that have chosen the same one, at least the
    later sees the other's mark, and takes another folder.

    Args:
        existing: the numbers of the folders that exist.

    Raises:
        DataError: the store cannot be written.
    """
    numbers = (index for index in itertools.chain([None], itertools.count()) if index not in existing)
    while True:
        folder = store.get_train_data_path(next(numbers))
        mark = f"{folder}/{_IN_THE_MAKING}{secrets.token_hex(8)}"
        with _explain_refusal(folder):
            store.write(mark, b"")
            if [entry.path for entry in store.entries(folder)] == [mark]:
                return folder, mark
            store.remove(mark)
        for _ in range(secrets.randbelow(3)):  # two drivers that collide choose different numbers
            next(numbers)


@contextlib.contextmanager
def _explain_refusal(folder: str) -> Iterator[None]:
    """Raise DataError if the driver cannot write to a folder."""
    try:
        yield
    except Exception as error:  # each kind of store has its own errors
        raise DataError(
            f"{folder} {_NOT_WRITTEN} {socket.gethostname()}, the driver's: {type(error).__name__}: {error}"
        ) from error


def _write_frame(
    frame: DataFrame,
    columns: Sequence[Readable],
    store: FilesystemStore,
    folder: str,
    mark: str,
    fingerprint: str | None,
    parts: int | None = None,
) -> DataFiles:
    chosen = frame.select(*number_columns(column.stored for column in columns))
    if parts is not None:
        chosen = chosen.repartition(parts, *chosen.columns).sortWithinPartitions(*chosen.columns)
    writer = _PartWriter(store, folder, mark, tuple(column.name for column in columns))
    try:
        rows = chosen.mapInArrow(writer, "report string").collect()
        if not rows:
            raise DataError("the DataFrame has no rows.")
    except BaseException as error:
        _discard(store, folder, mark)
        reason = find_task_error(error)
        if reason is None:
            raise
        text = str(reason.args[0])
        if _NOT_WRITTEN in text:
            text += ". Nothing of it is left; the store has to be writable on every executor."
        raise type(reason)(text) from error
    reports = sorted((json.loads(row[0]) for row in rows), key=lambda report: int(report["partition"]))
    manifest = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "written": time.time(),
        "session": _get_session(frame),
        "kinds": {column.name: column.kind for column in columns},
        "files": [{name: report[name] for name in ("name", "size", "groups", "kinds")} for report in reports],
    }
    store.write(f"{folder}/{MANIFEST}", json.dumps(manifest).encode())
    with contextlib.suppress(Exception):  # readers do not mind it
        store.remove(mark)
    files = find_data_set(store, folder)
    _log.info("wrote %d rows in %d Parquet files to %s", files.rows, len(files.files), folder)
    return files


def _discard(store: FilesystemStore, folder: str, mark: str) -> None:
    """Remove a folder whose data set was not finished. Tasks that still write find that the mark is missing."""
    with contextlib.suppress(Exception):
        store.remove(mark)
    for _ in range(_TRIES):  # a task may just have begun a file in it
        with contextlib.suppress(Exception):
            if not store.exists(folder) or store.exists(f"{folder}/{MANIFEST}"):
                return
            store.remove(folder)


def _get_session(frame: DataFrame) -> str | None:
    """Return the id of the Spark application; None on Spark Connect, which does not report it."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        return None
    return str(frame.sparkSession.sparkContext.applicationId)


def find_data_set(store: FilesystemStore, folder: str) -> DataFiles:
    """Return the data set in a folder: what a manifest, or the log of a Delta table, lists, or all that Spark (or who
    writes ``_SUCCESS``) has put there.

    Raises:
        DataError: there is none, it is incomplete, or its manifest is not one of this package.
    """
    if store.exists(f"{folder}/{MANIFEST}"):
        return _list_files(store, folder)
    if store.exists(f"{folder}/_SUCCESS") or delta.is_delta(folder, store):
        return find_files(folder, store)
    raise DataError(
        f"{folder} holds no complete data: neither {MANIFEST}, which is written last, nor Spark's _SUCCESS is there. "
        "Write it with df.write.parquet(), or with fit(df) and materialize=True; what is there may be the rest of a "
        "write that did not end."
    )


def read_manifest(store: FilesystemStore, folder: str) -> dict[str, Any]:
    """Return the manifest of a data set, which was written after all of its files.

    Raises:
        DataError: it is not one of this package.
    """
    path = f"{folder}/{MANIFEST}"
    try:
        result = json.loads(store.read(path))
        if result["version"] != _VERSION:
            raise ValueError(f"it is of version {result['version']!r}, not {_VERSION}")
        for file in result["files"]:
            if (
                "/" in file["name"]
                or not isinstance(file["size"], int)
                or not all(rows >= 0 for rows in file["groups"])
            ):
                raise ValueError(f"it lists {file!r}")
        return dict(result)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a manifest of spark_estimator: {error}. Remove the folder.") from error


def _list_files(store: FilesystemStore, folder: str) -> DataFiles:
    manifest = read_manifest(store, folder)
    sizes = {entry.path.rpartition("/")[2]: entry.size for entry in store.entries(folder)}
    files = []
    for file in manifest["files"]:
        if sizes.get(file["name"]) != file["size"]:
            has = (
                "is not there" if file["name"] not in sizes else f"has {sizes[file['name']]} bytes, not {file['size']}"
            )
            raise DataError(
                f"{folder}/{file['name']} {has}, so the data set is torn: remove the folder. (If it was just written: "
                "the store's path has to be the same place for the driver and for all executors.)"
            )
        files.append(DataFile(f"{folder}/{file['name']}", file["size"], tuple(file["groups"]), file["kinds"]))
    return DataFiles(tuple(files), store, manifest["kinds"])
