"""The Parquet files of a data set as row groups: partition columns of folders, rows that were selected, and reading."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy
import pyarrow
import pyarrow.parquet

from spark_estimator.data.fields import Array
from spark_estimator.data.numbers import get_kind, to_numbers
from spark_estimator.data.parquet import DataFiles, list_data
from spark_estimator.data.parquet_file import DataFile, name_errors, open_store, to_local_form
from spark_estimator.data.rank import shares
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.codecs import KINDS, Coded, inspect_first
from spark_estimator.extensions.petastorm.schema import SchemaField
from spark_estimator.extensions.petastorm.unischema import UnischemaField, to_unischema_field
from spark_estimator.store import FilesystemStore

# Spark's name for the folder of rows whose value is null.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


class Piece(NamedTuple):
    """Selected rows of one row group: the numbers of file and group, the first row, and how many."""

    file: int
    group: int
    start: int
    rows: int


@dataclass(frozen=True)
class DatasetFiles(DataFiles):
    """Files of a data set. Partition columns are the files' `constants`: int64 or texts.

    Attributes:
        coded: columns that are decoded when they are read, by name.
        selected: [files][row groups] the numbers of the rows that were selected; None: all. Empty: all of all files.
    """

    coded: Mapping[str, Coded] = field(default_factory=dict)
    selected: tuple[tuple[Array | None, ...], ...] = ()

    @classmethod
    def from_files(cls, files: DataFiles) -> DatasetFiles:
        """Return the files with their columns as they are stored, and all their rows."""
        return files if isinstance(files, DatasetFiles) else cls(files.files, files.store, files.known_kinds)

    def add_coded(self, fields: Sequence[SchemaField]) -> DatasetFiles:
        """Return these files with columns that are decoded; raises as `inspect_first`."""
        return replace(self, coded={declared.name: inspect_first(self, declared) for declared in fields})

    @property
    def partitions(self) -> tuple[str, ...]:
        """Return the names of the partition columns."""
        return tuple(self.files[0].constants) if self.files else ()

    @property
    def kinds(self) -> Mapping[str, str]:
        decoded = {name: KINDS[numpy.dtype(value.stored).kind] for name, value in self.coded.items()}
        return {**dict.fromkeys(self.partitions, ""), **super().kinds, **decoded}

    @property
    def rows(self) -> int:
        return sum(itertools.chain.from_iterable(self.count_group_rows()))

    def count_group_rows(self) -> list[list[int]]:
        """Return [files][row groups] the number of selected rows."""
        if not self.selected:
            return [list(file.groups) for file in self.files]
        return [
            [rows if numbers is None else len(numbers) for rows, numbers in zip(file.groups, of_file, strict=True)]
            for file, of_file in zip(self.files, self.selected, strict=True)
        ]

    def find_pieces(self, shard: int, shards: int) -> list[Piece]:
        """Return one of equal shares of the selected rows, cut where row groups end."""
        groups = [
            (file, group, rows)
            for file, of_file in enumerate(self.count_group_rows())
            for group, rows in enumerate(of_file)
        ]
        ranges = shares.divide_ranges([rows for _, _, rows in groups], shards, shard)
        return [Piece(*groups[part.piece][:2], part.start, part.rows) for part in ranges]

    def read_batches(
        self, columns: Sequence[str], rank: int, size: int, batch_rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        if self.selected:
            footers: dict[int, Any] = {}
            for piece in self.find_pieces(rank, size):
                table = self.read(piece, columns, footers, as_stored=True).combine_chunks()
                yield from table.to_batches(max_chunksize=batch_rows)
            return
        row = 0
        for batch in super().read_batches(columns, rank, size, batch_rows):
            arrays = [
                self.coded[name].decode(array, row) if name in self.coded else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=batch.schema.names)
            row += batch.num_rows

    def read(
        self, piece: Piece, columns: Sequence[str], footers: dict[int, Any], as_stored: bool = False
    ) -> pyarrow.Table:
        """Return the rows of a piece.

        Args:
            footers: of files by their numbers, to be used again.
            as_stored: vectors of Spark ML stay structs.

        Raises:
            DataError: the file is not what it was.
        """
        file = self.files[piece.file]
        stored = [name for name in columns if name not in file.constants]
        selected = self.selected[piece.file][piece.group] if self.selected else None
        table = pyarrow.table({})
        if stored:
            with file.open_file(self.store, footer=footers.get(piece.file)) as opened:
                footers[piece.file] = opened.metadata
                table = file.read_table(opened, piece.group, stored)
            if selected is None:
                table = table.slice(piece.start, piece.rows)
            else:
                table = table.take(pyarrow.array(selected[piece.start : piece.start + piece.rows]))
        arrays: list[Any] = []
        for name in columns:
            if name in file.constants:
                arrays.append(pyarrow.repeat(file.constants[name], piece.rows))
                continue
            column = table.column(name)
            if name in self.coded:
                column = self.coded[name].decode(column.combine_chunks(), piece.start if selected is None else 0)
            elif not as_stored and pyarrow.types.is_struct(column.type) and get_kind(column.type) == "vector":
                column = to_numbers(column.combine_chunks())
            arrays.append(column)
        return pyarrow.table(arrays, names=list(columns))

    def read_fields(self) -> tuple[list[UnischemaField], dict[str, str]]:
        """Return all columns as fields, partition columns first; and the types of those that no reader reads."""
        if not self.files:
            return [], {}
        columns = [
            pyarrow.field(name, value.type, nullable=not all(file.constants[name].is_valid for file in self.files))
            for name, value in self.files[0].constants.items()
        ]
        with name_errors(self.files[0].path), self.store.open(self.files[0].path) as raw:
            columns += [column for column in pyarrow.parquet.read_schema(raw) if column.name not in self.partitions]
        result: list[UnischemaField] = []
        omitted: dict[str, str] = {}
        for column in columns:
            made = to_unischema_field(column)
            if (coded := self.coded.get(column.name)) is not None:
                made = UnischemaField(column.name, numpy.dtype(coded.dtype).type, coded.shape, None, False)
            if made is None:
                omitted[column.name] = str(column.type)
            else:
                result.append(made)
        return result, omitted


def find_dataset(paths: str | Sequence[str], storage_options: Mapping[str, Any] | None = None) -> DatasetFiles:
    """Return the Parquet files below a folder, or those that are named. Folders ``name=value`` make partition columns.

    PyArrow's own discovery takes numbers of more than 32 bits for texts, and folders of other names for none.

    Raises:
        DataError: there are none, or folders below have other names, or the folder is part of a Delta, Hudi or
            Iceberg table.
    """
    written = [paths] if isinstance(paths, str) else paths
    named = [to_local_form(path) for path in written]
    if not named:
        raise DataError("no path of Parquet files was given.")
    store = open_store(named[0], storage_options)
    files: list[tuple[DataFile, dict[str, str]]] = []
    formats: dict[str, frozenset[str]] = {}
    for spelling, path in zip(written, named, strict=True):
        files += _find_files(store, store.get_full_path(path), path, spelling, {}, formats)
    if not files:
        raise DataError(f"{', '.join(named)}: there are no Parquet files.")
    names = list(files[0][1])
    for file, values in files:
        if list(values) != names:
            raise DataError(
                f"{file.path} is in folders of the partition columns {list(values)}, and {files[0][0].path} of {names}."
            )
    constants = {name: _parse_values([values[name] for _, values in files]) for name in names}
    partitioned = [
        file.add_constants({name: values[number] for name, values in constants.items()})
        for number, (file, _) in enumerate(files)
    ]
    return DatasetFiles(tuple(partitioned), store)


def _find_files(
    store: FilesystemStore,
    folder: str,
    path: str,
    spelling: str,
    values: dict[str, str],
    formats: dict[str, frozenset[str]],
) -> Iterator[tuple[DataFile, dict[str, str]]]:
    for name, entry in list_data(folder, path, spelling, store, None if values else formats):
        if entry.size is not None:
            yield DataFile.read(entry.path, store, entry.size), values
            continue
        column, equals, value = name.partition("=")
        if not equals or not column:
            raise DataError(
                f"{path} has the folder {name!r} inside, whose name is not that of a partition (name=value): name the "
                "folders that hold files."
            )
        inner = {**values, unquote(column): unquote(value)}
        yield from _find_files(store, entry.path, path, spelling, inner, formats)


def _parse_values(values: Sequence[str]) -> pyarrow.Array:
    """Return whole numbers if all values are; else texts. A null is null."""
    texts = [None if value == _NULL_FOLDER else value for value in values]
    try:
        return pyarrow.array([None if value is None else int(value) for value in texts], pyarrow.int64())
    except ValueError:
        return pyarrow.array(texts, pyarrow.string())
