"""One Parquet file: its footer, the store that opens it, and the rows of its row groups."""

from __future__ import annotations

import inspect
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import numpy
import pyarrow
import pyarrow.parquet

from spark_estimator.data.fields import is_list
from spark_estimator.data.legacy_calendar import check_calendar, find_legacy_columns
from spark_estimator.data.numbers import get_kind
from spark_estimator.errors import DataError
from spark_estimator.store import DBFSLocalStore, FilesystemStore, Store

# The bytes of a column that are buffered at a time, instead of a whole row group.
BUFFER_BYTES = 1 << 20
# Spark writes checksums. To look at them takes no time beside decoding, and damage gives other values. PyArrow 14 does
# not look at them.
_CHECKSUMS = "page_checksum_verification"
_CHECKED = _CHECKSUMS in inspect.signature(pyarrow.parquet.ParquetFile.__init__).parameters
_ID = b"PARQUET:field_id"
_VIEW = re.compile("(string|binary)_view")
#: How every reader opens a file. Spark's timestamps are INT96 by default: as nanoseconds, years before 1678 and after
#: 2261 would overflow without an error.
READ_OPTIONS: dict[str, Any] = {"coerce_int96_timestamp_unit": "us", **({_CHECKSUMS: True} if _CHECKED else {})}


@dataclass(frozen=True)
class LiveRows:
    """Which rows of a row group are left.

    Attributes:
        of: rows that the row group has.
        rows: that are left.
        bits: Arrow's bitmap of them, compressed: it goes to each rank with the list of files.
    """

    of: int
    rows: int
    bits: bytes

    @classmethod
    def from_mask(cls, mask: pyarrow.BooleanArray) -> LiveRows | None:
        """Return the rows for which `mask` is true; None if these are all."""
        if mask.false_count == 0:
            return None
        bits = numpy.packbits(mask.to_numpy(zero_copy_only=False), bitorder="little")
        return cls(len(mask), mask.true_count, zlib.compress(bits.tobytes(), 1))

    def select(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows that are left of batches that hold all rows in their order."""
        bits = pyarrow.py_buffer(zlib.decompress(self.bits))
        mask = pyarrow.Array.from_buffers(pyarrow.bool_(), self.of, [None, bits])
        start = 0
        for batch in batches:
            left = _select_rows(batch, mask.slice(start, batch.num_rows))
            start += batch.num_rows
            if left.num_rows:
                yield left


@dataclass(frozen=True)
class DataFile:
    """One Parquet file, as its footer describes it.

    Attributes:
        path: of this machine, or a URL.
        size: in bytes.
        groups: [row groups] rows of each, without deleted ones.
        kinds: the columns' types in Spark's words, by name.
        constants: columns that are not in the file, by name: each of its rows has this value.
        ids: numbers by which a table's metadata names columns of the file, by the columns' names in it.
        stored: names in the file of columns that have others there.
        types: types of columns that the file holds in narrower ones.
        live: [row groups] the rows that a table's metadata has left of a group; None: all. Empty: all of all groups.
    """

    path: str
    size: int
    groups: tuple[int, ...]
    kinds: Mapping[str, str]
    constants: Mapping[str, pyarrow.Scalar] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, pyarrow.DataType] = field(default_factory=dict)
    live: tuple[LiveRows | None, ...] = ()

    @classmethod
    def read(cls, path: str, store: FilesystemStore, size: int | None = None) -> DataFile:
        """Read the footer of a file.

        Raises:
            DataError: it cannot be read, is no Parquet file, or two of its columns have one name.
        """
        with name_errors(path), store.open(path) as raw:
            if size is None:
                size = raw.seek(0, 2)
                raw.seek(0)
            metadata = pyarrow.parquet.read_metadata(raw)
            schema = metadata.schema.to_arrow_schema()
            names = list(schema.names)
            groups = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if len(set(names)) < len(names):
            raise DataError(f"{path} has two columns of one name: {', '.join(names)}.")
        ids = {column.name: int(column.metadata[_ID]) for column in schema if _ID in (column.metadata or {})}
        return cls(path, size, groups, {column.name: get_kind(column.type) for column in schema}, ids=ids)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(self.groups)

    @property
    def is_plain(self) -> bool:
        """Return whether the columns and rows are those that any reader of Parquet finds in it."""
        return not (self.constants or self.stored or self.types or self.live)

    def add_constants(self, constants: Mapping[str, pyarrow.Scalar]) -> DataFile:
        """Return the same file with columns that it does not hold itself; see `constants`."""
        kinds = {name: get_kind(value.type) for name, value in constants.items()}
        return replace(self, kinds={**self.kinds, **kinds}, constants=dict(constants))

    @contextmanager
    def open_file(
        self, store: FilesystemStore, buffer_bytes: int = BUFFER_BYTES, footer: Any = None
    ) -> Iterator[pyarrow.parquet.ParquetFile]:
        """Yield the open file. Inside the block each error becomes a `DataError` that names the file.

        Args:
            buffer_bytes: the encoded bytes of each column that are buffered at a time.
            footer: `metadata` of the file when it was open before; None: it is read.

        Raises:
            DataError: it is not the file of this footer any more.
        """
        with name_errors(self.path), store.open(self.path) as raw, _to_arrow_file(raw) as source:
            if footer is not None and source.seek(0, 2) != self.size:
                raise DataError(f"{self.path} has changed: it had {self.size} bytes, and now has {source.tell()}.")
            opened = pyarrow.parquet.ParquetFile(
                source, metadata=footer, buffer_size=buffer_bytes, pre_buffer=False, **READ_OPTIONS
            )
            groups = tuple(opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups))
            whole = zip(self.groups, self.live or [None] * len(self.groups), strict=True)
            expected = tuple(rows if live is None else live.of for rows, live in whole)
            if groups != expected:
                raise DataError(f"{self.path} has changed: its row groups had {expected} rows, and now have {groups}.")
            yield opened

    def read_table(self, opened: pyarrow.parquet.ParquetFile, group: int, columns: Sequence[str]) -> pyarrow.Table:
        """Return columns that the file holds of a row group, decoded in this thread; arguments as `read_group`."""
        table = opened.read_row_group(group, columns=list(columns), use_threads=False)
        check_calendar(self.path, find_legacy_columns(opened.metadata, columns), table)
        return table

    def read_group(
        self,
        opened: pyarrow.parquet.ParquetFile,
        group: int,
        columns: Sequence[str],
        batch_rows: int,
        parallel: bool = True,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield all rows of a row group that are not deleted, in batches of at most `batch_rows`.

        Args:
            opened: what `opened` gives.
            columns: by name; none twice.
            parallel: several threads decode, each a column at a time.
        """
        names = {name: self.stored.get(name, name) for name in columns if name not in self.constants}
        legacy = find_legacy_columns(opened.metadata, list(names.values()))
        batches = opened.iter_batches(
            batch_rows, row_groups=[group], columns=list(names.values()), use_threads=parallel
        )
        batches = _replace_views(batches, opened.schema_arrow)
        live = self.live[group] if self.live else None
        for batch in batches if live is None else live.select(batches):
            check_calendar(self.path, legacy, batch)
            if not (self.constants or self.stored or self.types):
                yield batch.select(list(columns))
                continue
            arrays = [
                pyarrow.repeat(self.constants[name], batch.num_rows)
                if name in self.constants
                else batch.column(names[name]).cast(self.types.get(name, batch.column(names[name]).type))
                for name in columns
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))


def _replace_views(batches: Iterator[pyarrow.RecordBatch], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches with texts and bytes in the layout that all functions of Arrow take: some writers (DataFusion,
    deltalake) let a file ask for another.
    """
    if not any(_VIEW.search(str(kind)) for kind in schema.types):
        yield from batches
        return
    for batch in batches:
        fields = [field.with_type(_find_plain_type(field.type)) for field in batch.schema]
        yield batch.cast(pyarrow.schema(fields))


def _find_plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    if is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_find_plain_type(kind.value_type)))
    return {"string_view": pyarrow.string(), "binary_view": pyarrow.binary()}.get(str(kind), kind)


def _select_rows(batch: pyarrow.RecordBatch, mask: pyarrow.BooleanArray) -> pyarrow.RecordBatch:
    """Return the rows for which `mask` is true. Arrow's own filter copies rows' arrays value by value: rows that follow
    each other are copied at once here, which is four times as fast.
    """
    if not any(map(pyarrow.types.is_nested, batch.schema.types)):
        return batch.filter(mask)
    bits = numpy.concatenate(([0], mask.to_numpy(zero_copy_only=False).view(numpy.int8), [0]))
    ends = numpy.flatnonzero(numpy.diff(bits)).tolist()  # of runs, in turns their first and one after their last row
    runs = list(zip(ends[::2], ends[1::2], strict=True)) or [(0, 0)]
    arrays = [
        pyarrow.concat_arrays([column.slice(start, end - start) for start, end in runs])
        if pyarrow.types.is_nested(column.type)
        else column.filter(mask)
        for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _to_arrow_file(raw: Any) -> Any:
    """Return a local file as Arrow opens it: it reads without Python's lock, and copies once less. Other files as
    they are.
    """
    if isinstance(raw, io.BufferedReader) and isinstance(raw.name, str):
        return pyarrow.OSFile(raw.name)
    return raw


@contextmanager
def name_errors(path: str) -> Iterator[None]:
    """Turn each error inside the block into a `DataError` that names the file: Arrow raises any type on damage."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        of_disk = isinstance(error, OSError) and error.errno is not None
        advice = "" if of_disk else ". It is damaged, or no Parquet file: write it again, or leave it out."
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {str(error).strip(' .')}{advice}") from error


def open_store(path: str, storage_options: Mapping[str, Any] | None = None) -> FilesystemStore:
    """Return the store that opens a path: of this machine, of DBFS, or a URL that fsspec knows."""
    store = Store.create(path, **({"storage_options": dict(storage_options)} if storage_options else {}))
    assert isinstance(store, FilesystemStore)
    return store


def to_local_form(path: str) -> str:
    """Return a path as Spark has it, as this machine's programs have it: without ``file:``, and ``dbfs:/`` as
    ``/dbfs/``.

    Spark writes ``file:`` before the characters of a path; `pathlib.Path.as_uri` quotes some with ``%``. Where
    the path as written does not exist, and the unquoted one does, it is that one.
    """
    if DBFSLocalStore.matches(path):
        return DBFSLocalStore.normalize_path(path)
    if path.startswith("file:"):
        written = "/" + path.removeprefix("file:").lstrip("/")
        unquoted = unquote(written)
        return unquoted if not os.path.exists(written) and os.path.exists(unquoted) else written
    for spark, python in (("s3a://", "s3://"), ("s3n://", "s3://")):
        if path.startswith(spark):
            return python + path.removeprefix(spark)
    return path


def slice_rows(batches: Iterator[pyarrow.RecordBatch], start: int, rows: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield `rows` rows from `start` on of a stream of batches.

    Raises:
        ValueError: there are fewer.
    """
    for batch in batches:
        if start >= batch.num_rows:
            start -= batch.num_rows
            continue
        piece = batch.slice(start, rows)
        start, rows = 0, rows - piece.num_rows
        yield piece
        if not rows:
            return
    if rows:
        raise ValueError(f"a row group has {rows} rows less than its footer lists")
