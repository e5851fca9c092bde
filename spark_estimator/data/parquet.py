"""Rows of Parquet files without Spark: lists the files, assigns rows to ranks, and reads batches.

A set of files is read by `n` ranks as if all row groups were one sequence of rows, cut into `n` equal pieces: shares
differ by one row at most, for any sizes of files and row groups. A rank reads only the row groups that its piece
touches, a batch at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.compute

from spark_estimator.data.parquet_file import DataFile, open_store, slice_rows, to_local_form
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.spool import Spool, write_spools
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.tables import delta
from spark_estimator.data.tables.table_folders import check_outside_tables
from spark_estimator.errors import DataError, PreflightError
from spark_estimator.store import FilesystemStore
from spark_estimator.store.filesystem import Entry
from spark_estimator.store.hadoop import find_default_filesystem

# How many arrays are read at a time to find their length.
_ROWS_TO_MEASURE = 1 << 13


@dataclass(frozen=True)
class DataFiles:
    """A set of Parquet files with the same columns.

    Attributes:
        files: in the order in which their rows are counted.
        store: opens them.
        known_kinds: the columns' types in Spark's words, where they are known to differ from those in the files.
    """

    files: tuple[DataFile, ...]
    store: FilesystemStore
    known_kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def kinds(self) -> Mapping[str, str]:
        """Return the columns' types in Spark's words, by name."""
        kinds = {**(self.files[0].kinds if self.files else {}), **self.known_kinds}
        return {name: kinds[name] for name in (*self.known_kinds, *kinds)}

    def check(self, columns: Sequence[str], like: DataFiles | None = None) -> None:
        """Raise DataError for files whose columns differ from those of the first file.

        Args:
            like: files whose first one counts, instead of the first of these.

        Raises:
            DataError: the text names the file.
        """
        first = next(iter((like or self).files), None)
        for file, column in itertools.product(self.files, columns):
            assert first is not None
            if file.kinds.get(column) != first.kinds.get(column):
                raise DataError(
                    f"column {column!r} is {first.kinds.get(column, 'not there')} in {first.path}, and "
                    f"{file.kinds.get(column, 'not there')} in {file.path}: write them with one type."
                )

    def read_batches(
        self, columns: Sequence[str], rank: int, size: int, batch_rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of one rank's share, in the order of the files.

        Args:
            columns: by name; none twice.
            batch_rows: the most rows of a batch.

        Raises:
            DataError: a file is not what it was.
        """
        pieces = [(number, group) for number, file in enumerate(self.files) for group in range(len(file.groups))]
        rows = [self.files[number].groups[group] for number, group in pieces]
        ranges = shares.divide_ranges(rows, size, rank)
        for number, of_file in itertools.groupby(ranges, key=lambda part: pieces[part.piece][0]):
            file = self.files[number]
            with file.open_file(self.store) as opened:
                for share in of_file:
                    group = file.read_group(opened, pieces[share.piece][1], columns, batch_rows)
                    yield from slice_rows(group, share.start, share.rows)


@dataclass(frozen=True)
class FileRows:
    """Rows of files that ranks read without Spark. It is pickled to them.

    Attributes:
        files: that hold them.
        encoder: makes matrices of their columns.
    """

    files: DataFiles
    encoder: RowEncoder

    def read(self, rank: int, size: int) -> tuple[Spool, Spool]:
        """Read a rank's share into its spool.

        Returns:
            The rows to train on, and those that are marked.

        Raises:
            DataError: a file, or a value in it, cannot be used.
        """
        batches = self._read_batches(None, rank, size, self.encoder.batch_rows)
        train, marked = write_spools(batches, self.encoder)
        return train.to_spool(), marked.to_spool()

    def read_first_rows(self, dtypes: Sequence[str], count: int) -> pyarrow.RecordBatch:
        """Return at most `count` rows, as ``c0``, ``c1`` and so on; none if there are none.

        Args:
            dtypes: [columns] of their tensors.
        """
        for batch in self._read_batches(dtypes, 0, 1, count):
            if batch.num_rows:
                return batch
        return pyarrow.RecordBatch.from_pydict({f"c{number}": [] for number in range(len(self.encoder.columns))})

    def find_longest(self, dtypes: Sequence[str], columns: Sequence[str]) -> list[int]:
        """Return the most values that a row's array has, in each of these of ``c0``, ``c1`` and so on. It reads all
        rows.

        Args:
            dtypes: as in `read_first_rows`.
        """
        most = [0] * len(columns)
        for batch in self._read_batches(dtypes, 0, 1, _ROWS_TO_MEASURE):
            for index, column in enumerate(columns):
                length = pyarrow.compute.max(pyarrow.compute.list_value_length(batch.column(column))).as_py()
                most[index] = max(most[index], length or 0)
        return most

    def _read_batches(
        self, dtypes: Sequence[str] | None, rank: int, size: int, batch_rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        batches = self.files.read_batches(self.encoder.read, rank, size, batch_rows)
        return self.encoder.encode_batches(batches, batch_rows, dtypes)


def _describe_cluster_path(path: str) -> str:
    """Return how a path without a scheme is written, where the cluster's default file system is not the local one."""
    if ":/" in path:
        return ""
    try:
        root = find_default_filesystem(path, {})
    except PreflightError:  # it is
        return ""
    spelling = f"{root}{path}" if path.startswith("/") else f"{root}/..., with the whole path"
    return (
        " A path without a scheme is on this machine's disk here; on the cluster's default file system, which Spark "
        f"takes it for, it is {spelling}."
    )


def list_data(
    folder: str, path: str, spelling: str, store: FilesystemStore, formats: dict[str, frozenset[str]] | None
) -> list[tuple[str, Entry]]:
    """Return the names and entries of a folder; those that begin with ``_`` or ``.`` are no data, as for Spark.

    Args:
        path, spelling: of the folder as it is named in messages, and as the user has written it.
        formats: as in `check_outside_tables`; None: the folder is below one that was checked.

    Raises:
        DataError: the folder does not exist, or is part of a table whose metadata is not read.
    """
    try:
        entries = store.entries(folder)
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file or folder does not exist.{_describe_cluster_path(spelling)}") from error
    if formats is not None:
        check_outside_tables(path, folder, entries, store, formats)
    named = [(entry.path.rstrip("/").rpartition("/")[2], entry) for entry in entries]
    return [(name, entry) for name, entry in named if not name.startswith(("_", "."))]


def find_files(
    paths: str | Sequence[str],
    store: FilesystemStore | None = None,
    storage_options: Mapping[str, Any] | None = None,
    version: delta.Version = None,
) -> DataFiles:
    """Return the Parquet files of a folder, of a version of a Delta table, or those that are named.

    Args:
        version: of all Delta tables; None: their last ones.

    Raises:
        DataError: there are none, or the folder is divided by the values of a column, or it is part of a table
            whose metadata is not read.
    """
    written = [paths] if isinstance(paths, str) else paths
    named = [to_local_form(path) for path in written]
    if not named:
        raise DataError("no path of Parquet files was given.")
    store = store or open_store(named[0], storage_options)
    result: list[DataFile] = []
    formats: dict[str, frozenset[str]] = {}
    for spelling, path in zip(written, named, strict=True):
        folder = store.get_full_path(path)
        if delta.is_delta(folder, store):
            result += delta.find_table_files(folder, store, version)
            continue
        if version is not None:
            raise DataError(f"{path} is no Delta table, and has no version {version}.")
        for name, entry in list_data(folder, path, spelling, store, formats):
            if entry.size is None:
                raise DataError(
                    f"{path} has the folder {name!r} inside"
                    + (", by the values of a column, which files below do not hold" if "=" in name else "")
                    + ": name the folders that hold files, or read it with Spark."
                )
            result.append(DataFile.read(entry.path, store, entry.size))
    if not result:
        raise DataError(f"{', '.join(named)}: there are no Parquet files.")
    return DataFiles(tuple(result), store)
