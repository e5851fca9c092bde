"""Rows of Parquet files without Spark: which files there are, which rows are whose, and batches of them.

A set of files is read by `n` ranks as if all row groups were one sequence of rows, cut into `n` equal pieces: shares
differ by one row at most, for any sizes of files and row groups. A rank reads only the row groups that its piece
touches, a batch at a time.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from spark_estimator.data.fields import Field
from spark_estimator.data.numbers import kind_of
from spark_estimator.data.preparation import Preparation, batch_rows_of, dtypes_of
from spark_estimator.data.rank import shares
from spark_estimator.data.rank.spool import Spool, spooled
from spark_estimator.errors import DataError
from spark_estimator.store import DBFSLocalStore, FilesystemStore, Store

# Of arrays whose length is looked for so many are read at a time.
_ROWS_TO_MEASURE = 1 << 13
# Of a column's bytes so many are held at a time, and not a whole row group.
_BUFFER_BYTES = 1 << 20
# Spark writes checksums. To look at them takes no time beside decoding, and damage gives other values. PyArrow 14 does
# not look at them.
_CHECKSUMS = "page_checksum_verification"
_CHECKED: dict[str, Any] = (
    {_CHECKSUMS: True} if _CHECKSUMS in inspect.signature(pyarrow.parquet.ParquetFile.__init__).parameters else {}
)


@dataclass(frozen=True)
class DataFile:
    """One Parquet file, as its footer describes it.

    Attributes:
        path: of this machine, or a URL.
        size: in bytes.
        groups: [row groups] rows of each.
        kinds: the columns' types in Spark's words, by name.
    """

    path: str
    size: int
    groups: tuple[int, ...]
    kinds: Mapping[str, str]

    @classmethod
    def at(cls, path: str, store: FilesystemStore, size: int | None = None) -> DataFile:
        """Reads the footer of a file.

        Raises:
            DataError: it cannot be read, is no Parquet file, or two of its columns have one name.
        """
        with naming(path), store.open(path) as raw:
            if size is None:
                size = raw.seek(0, 2)
                raw.seek(0)
            metadata = pyarrow.parquet.read_metadata(raw)
            schema = metadata.schema.to_arrow_schema()
            names = list(schema.names)
            groups = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if len(set(names)) < len(names):
            raise DataError(f"{path} has two columns of one name: {', '.join(names)}.")
        return cls(path, size, groups, {column.name: kind_of(column.type) for column in schema})

    @property
    def rows(self) -> int:
        """How many it has."""
        return sum(self.groups)


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
        """Of all files."""
        return sum(file.rows for file in self.files)

    @property
    def kinds(self) -> Mapping[str, str]:
        """The columns' types in Spark's words, by name."""
        return {**(self.files[0].kinds if self.files else {}), **self.known_kinds}

    def check(self, columns: Sequence[str], like: DataFiles | None = None) -> None:
        """Refuses files whose columns differ from those of the first file.

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

    def batches(self, columns: Sequence[str], rank: int, size: int, batch_rows: int) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one rank's share, in the order of the files.

        Args:
            columns: by name; none twice.
            batch_rows: the most rows of a batch.

        Raises:
            DataError: a file is not what it was.
        """
        pieces = [(number, group) for number, file in enumerate(self.files) for group in range(len(file.groups))]
        rows = [self.files[number].groups[group] for number, group in pieces]
        ranges = shares.ranges(rows, size, rank)
        for number, of_file in itertools.groupby(ranges, key=lambda part: pieces[part.piece][0]):
            yield from self._of_file(
                self.files[number],
                [(pieces[share.piece][1], share.start, share.rows) for share in of_file],
                columns,
                batch_rows,
            )

    def _of_file(
        self, file: DataFile, parts: Sequence[tuple[int, int, int]], columns: Sequence[str], batch_rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        with naming(file.path), self.store.open(file.path) as raw:
            opened = pyarrow.parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False, **_CHECKED)
            result = tuple(opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups))
            if result != file.groups:
                raise DataError(
                    f"{file.path} has changed: its row groups had {file.groups} rows, and now have {result}."
                )
            for group, start, rows in parts:
                yield from _some_rows(
                    opened.iter_batches(batch_rows, row_groups=[group], columns=list(columns)), start, rows, columns
                )


@dataclass(frozen=True)
class FileRows:
    """Rows of files that ranks read by themselves. It travels to them.

    Attributes:
        files: that hold them.
        preparation: which of their columns are wanted, and what is done to them.
        folder: of the spool, as in `SpoolFeed`.
    """

    files: DataFiles
    preparation: Preparation
    folder: str | None = None

    def read(self, fields: Sequence[Field], rank: int, size: int) -> tuple[Spool, Spool]:
        """Reads a rank's share into its spool.

        Returns:
            The rows to train on, and those that are marked.

        Raises:
            DataError: a file, or a value in it, cannot be used.
        """
        batches = self._batches(dtypes_of(fields), rank, size, batch_rows_of(fields))
        marker = None if self.preparation.marker is None else "marker"
        train, held = spooled(batches, fields, marker, self.folder)
        return train.spool(), held.spool()

    def first_rows(self, dtypes: Sequence[str], count: int) -> pyarrow.RecordBatch:
        """At most `count` rows, as ``c0``, ``c1`` and so on; none where there are none.

        Args:
            dtypes: [columns] of their tensors.
        """
        for batch in self._batches(dtypes, 0, 1, count):
            if batch.num_rows:
                return batch
        return pyarrow.RecordBatch.from_pydict({f"c{number}": [] for number in range(len(self.preparation.columns))})

    def longest(self, dtypes: Sequence[str], columns: Sequence[str]) -> list[int]:
        """The most values that a row's array has, in each of these of ``c0``, ``c1`` and so on. It reads all rows.

        Args:
            dtypes: as in `first_rows`.
        """
        most = [0] * len(columns)
        for batch in self._batches(dtypes, 0, 1, _ROWS_TO_MEASURE):
            for index, column in enumerate(columns):
                length = pyarrow.compute.max(pyarrow.compute.list_value_length(batch.column(column))).as_py()
                most[index] = max(most[index], length or 0)
        return most

    def _batches(self, dtypes: Sequence[str], rank: int, size: int, batch_rows: int) -> Iterator[pyarrow.RecordBatch]:
        batches = self.files.batches(self.preparation.read, rank, size, batch_rows)
        return self.preparation.batches(batches, dtypes, batch_rows)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turns each error inside the block into a `DataError` that names the file: Arrow raises any type on damage."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        of_disk = isinstance(error, OSError) and error.errno is not None
        advice = "" if of_disk else ". It is damaged, or no Parquet file: write it again, or leave it out."
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {str(error).strip(' .')}{advice}") from error


def store_for(path: str, storage_options: Mapping[str, Any] | None = None) -> FilesystemStore:
    """What opens a path: of this machine, of DBFS, or a URL that fsspec knows."""
    store = Store.create(path, **({"storage_options": dict(storage_options)} if storage_options else {}))
    assert isinstance(store, FilesystemStore)
    return store


def local_form(path: str) -> str:
    """A path as Spark has it, as this machine's programs have it: without ``file:``, and ``dbfs:/`` as ``/dbfs/``."""
    if DBFSLocalStore.matches(path):
        return DBFSLocalStore.normalize_path(path)
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    for spark, python in (("s3a://", "s3://"), ("s3n://", "s3://")):
        if path.startswith(spark):
            return python + path.removeprefix(spark)
    return path


def files_at(
    paths: str | Sequence[str], store: FilesystemStore | None = None, storage_options: Mapping[str, Any] | None = None
) -> DataFiles:
    """The Parquet files of a folder, or those that are named.

    Files whose names begin with ``_`` or ``.`` are none, as for Spark.

    Raises:
        DataError: there are none, or the folder is divided by the values of a column.
    """
    named = [local_form(path) for path in ([paths] if isinstance(paths, str) else paths)]
    if not named:
        raise DataError("no path of Parquet files was given.")
    store = store or store_for(named[0], storage_options)
    result: list[DataFile] = []
    for path in named:
        try:
            entries = store.entries(store.get_full_path(path))
        except FileNotFoundError as error:
            raise DataError(f"{path}: the file or folder does not exist.") from error
        for entry in entries:
            name = entry.path.rstrip("/").rpartition("/")[2]
            if name.startswith(("_", ".")):
                continue
            if entry.size is None:
                raise DataError(
                    f"{path} has the folder {name!r} inside"
                    + (", by the values of a column, which files below do not hold" if "=" in name else "")
                    + ": name the folders that hold files, or read it with Spark."
                )
            result.append(DataFile.at(entry.path, store, entry.size))
    if not result:
        raise DataError(f"{', '.join(named)}: there are no Parquet files.")
    return DataFiles(tuple(result), store)


def _some_rows(
    batches: Iterator[pyarrow.RecordBatch], start: int, rows: int, columns: Sequence[str]
) -> Iterator[pyarrow.RecordBatch]:
    """Of rows that come in batches, those from `start` on."""
    for batch in batches:
        if start >= batch.num_rows:
            start -= batch.num_rows
            continue
        piece = batch.slice(start, rows)
        start, rows = 0, rows - piece.num_rows
        yield piece.select(list(columns))
        if not rows:
            return
    if rows:
        raise ValueError(f"a row group has {rows} rows less than its footer lists")
