"""Rows to inspect before a training: a DataFrame, Parquet files, or what a transformation makes of either's first rows.

Each `Source` answers the same questions. All that Spark is asked for before a training is asked for here, and in the
modules on vocabularies and on numbers for nulls.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow

from spark_estimator.data.categories import CategoryEncoder
from spark_estimator.data.columns import Readable, cast_columns, check_decoded, find_dropping_columns
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import find_widths
from spark_estimator.data.first_rows import fit_decoders
from spark_estimator.data.kept_rows import KeptRows, check_kept, estimate_row_bytes, find_longest_row, get_read_type
from spark_estimator.data.nulls import Nulls, drops_rows
from spark_estimator.data.parquet import DataFiles, FileRows
from spark_estimator.data.quoting import quote
from spark_estimator.data.row_encoder import RowEncoder, make_marks_error
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.transformation import Takes
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.schemas import FileSchema, FrameSchema, RawSchema, Schema, TransformedSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Enough to show whether arrays have one length, and whether doubles hold whole numbers.
SAMPLE_ROWS = 100
# Rows of files that are read at a time to find the longest one.
_ROWS_TO_MEASURE = 1 << 14


@dataclass(frozen=True)
class Inspection:
    """What the rows of a source show.

    Attributes:
        rows: at most a hundred, as ``c0``, ``c1`` and so on.
        encoder, columns: with the types and shapes that users' functions returned.
        widths: [columns] values per row; 1 for a scalar.
        padding: [columns] the fill value of shorter arrays; None: shorter arrays are an error.
    """

    rows: pyarrow.RecordBatch
    encoder: RowEncoder
    columns: tuple[Readable, ...]
    widths: tuple[int, ...]
    padding: tuple[float | None, ...]


class Source(ABC):
    """Rows to inspect.

    Attributes:
        schema: how their columns are read.
        arguments: the columns that a transformation gets; empty without one.
    """

    schema: Schema
    arguments: Sequence[Readable] = ()

    def inspect(self, fed: Sequence[Readable], encoder: RowEncoder, ragged: Ragged, inputs: int) -> Inspection:
        """Look at the first rows, and measure arrays that are padded.

        Args:
            fed: the columns that become tensors.
            inputs: how many of these are features; they come first.

        Raises:
            DataError: there are no rows, or arrays have different lengths.
        """
        rows, encoder, columns = self.read_first_rows(fed, encoder)
        if not rows.num_rows:
            raise DataError("the DataFrame has no rows" + (" without nulls." if drops_rows(encoder.nulls) else "."))
        padding = ragged.find_paddings(columns)
        shown = find_widths(rows, [f"c{number}" for number in range(len(columns))])
        widths = ragged.find_widths(
            shown, columns, padding, inputs, lambda positions: self.find_longest(columns, positions, encoder.nulls)
        )
        return Inspection(rows, encoder, tuple(columns), widths, padding)

    @abstractmethod
    def read_first_rows(
        self, fed: Sequence[Readable], encoder: RowEncoder
    ) -> tuple[pyarrow.RecordBatch, RowEncoder, list[Readable]]:
        """At most a hundred rows, as ``c0``, ``c1`` and so on.

        Returns:
            The rows, and the encoder and the columns with the types and shapes that users' functions returned.
        """

    @abstractmethod
    def find_longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """Return the longest array, over all rows, of each of the columns at some positions."""


class UntransformedSource(Source):
    """Rows as they are, which a transformation can be applied to."""

    schema: RawSchema

    @abstractmethod
    def read_raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """At most a hundred rows, under the columns' own names."""

    @abstractmethod
    def find_longest_row(self, columns: Sequence[Readable]) -> int:
        """Return the most bytes, over all rows, that the texts and arrays of a row have together."""


class FrameSource(UntransformedSource):
    """A DataFrame: each question about its rows is a Spark job."""

    def __init__(
        self, frame: DataFrame, decoders: Mapping[str, Decoder], categories: Mapping[str, CategoryEncoder]
    ) -> None:
        self._frame = frame
        self.schema = FrameSchema(frame.schema, decoders, categories)

    def read_raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """See `UntransformedSource.read_raw_rows`."""
        return _collect_first(self._frame.select(*(column.stored for column in columns)))

    def find_longest_row(self, columns: Sequence[Readable]) -> int:
        """See `UntransformedSource.find_longest_row`: a Spark job."""
        from pyspark.sql import functions

        frame = self._frame.select(*(column.stored for column in columns))
        lengths = []
        for stored in frame.schema.fields:
            column = functions.col(quote(stored.name))
            if stored.dataType.typeName() in ("string", "binary", "varchar", "char"):
                lengths.append(functions.octet_length(column))
            elif stored.dataType.typeName() == "array":
                lengths.append(8 * functions.size(column))
        if not lengths:
            return 0
        known = [
            functions.greatest(functions.coalesce(length, functions.lit(0)), functions.lit(0)) for length in lengths
        ]
        # Not a sum of sums: Spark's analysis of a thousand nested expressions ends in a StackOverflowError.
        total = functions.aggregate(
            functions.array(*(length.cast("bigint") for length in known)), functions.lit(0).cast("bigint"), operator.add
        )
        longest = frame.agg(functions.max(total)).first()
        return int((longest[0] if longest is not None else 0) or 0)

    def read_first_rows(
        self, fed: Sequence[Readable], encoder: RowEncoder
    ) -> tuple[pyarrow.RecordBatch, RowEncoder, list[Readable]]:
        """See `Source.read_first_rows`."""
        # Floating columns as doubles, to see whether their numbers are whole.
        dtypes = ["float64" if column.dtype == "float32" and not column.is_array else column.dtype for column in fed]
        marker = None if encoder.marker is None else self.schema.get_column(encoder.marker)
        rows = _drop_marks(_collect_first(self._cast(fed, dtypes, encoder.nulls, marker)), encoder.marker)
        return fit_decoders(rows, fed, encoder)

    def find_longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """See `Source.find_longest`."""
        from pyspark.sql import functions

        # Rows that are dropped do not count, and any column can cause that.
        read = list(range(len(fed))) if drops_rows(nulls) else list(positions)
        frame = self._cast([fed[n] for n in read], [fed[n].dtype for n in read], nulls)
        sizes = [functions.max(functions.size(f"c{read.index(position)}")) for position in positions]
        return [max(0, int(size or 0)) for size in frame.agg(*sizes).collect()[0]]

    def _cast(
        self, columns: Sequence[Readable], dtypes: Sequence[str], nulls: Nulls, marker: Readable | None = None
    ) -> DataFrame:
        marks = [] if marker is None else [marker.marks]
        frame = self._frame.select(*cast_columns(columns, dtypes, nulls), *marks)
        dropping = find_dropping_columns(columns, nulls)
        return frame.dropna(subset=dropping) if dropping else frame


class FileSource(UntransformedSource):
    """Parquet files, which this process reads."""

    def __init__(
        self, files: DataFiles, decoders: Mapping[str, Decoder], categories: Mapping[str, CategoryEncoder]
    ) -> None:
        self._files = files
        self.schema = FileSchema(files.kinds, decoders, categories)

    def read_raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """See `UntransformedSource.read_raw_rows`."""
        names = [column.name for column in columns]
        self._files.check(names)
        for batch in self._files.read_batches(names, 0, 1, SAMPLE_ROWS):
            if batch.num_rows:
                return batch
        return pyarrow.RecordBatch.from_pydict({name: [] for name in names})

    def find_longest_row(self, columns: Sequence[Readable]) -> int:
        """See `UntransformedSource.find_longest_row`: it reads all rows."""
        names = [column.name for column in columns]
        return max(map(find_longest_row, self._files.read_batches(names, 0, 1, _ROWS_TO_MEASURE)), default=0)

    def read_first_rows(
        self, fed: Sequence[Readable], encoder: RowEncoder
    ) -> tuple[pyarrow.RecordBatch, RowEncoder, list[Readable]]:
        """See `Source.read_first_rows`."""
        self._files.check([*(column.name for column in fed), *filter(None, [encoder.marker])])
        rows = FileRows(self._files, replace(encoder, decoders={}))
        first = _drop_marks(rows.read_first_rows([column.dtype for column in fed], SAMPLE_ROWS), encoder.marker)
        first, fitted, columns = fit_decoders(first, fed, replace(encoder, categories={}))
        return first, replace(fitted, categories=encoder.categories), columns

    def find_longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """See `Source.find_longest`."""
        read = list(range(len(fed))) if drops_rows(nulls) else list(positions)
        encoder = RowEncoder(tuple(fed[n].name for n in read), nulls=nulls, categories=self.schema.categories)
        rows = FileRows(self._files, encoder)
        return rows.find_longest([fed[n].dtype for n in read], [f"c{read.index(position)}" for position in positions])


class TransformedSource(Source):
    """Another source's first rows, transformed. The constructor calls the transformation once."""

    def __init__(self, inner: UntransformedSource, encoder: RowEncoder) -> None:
        transformation = encoder.transformation
        assert transformation is not None
        created = {edit[0] for edit in transformation.edited} - set(inner.schema.names)
        names = [name for name in dict.fromkeys([*encoder.read, *transformation.removed]) if name not in created]
        arguments = [inner.schema.get_raw_column(name) for name in names]
        for column in arguments:
            if column.name in encoder.decoders:
                check_decoded(column.name, column.kind)
            if column.name in encoder.categories:
                encoder.categories[column.name].check(column.name, column.kind)
        rows = inner.read_raw_rows(arguments)
        if not rows.num_rows:
            raise DataError("the DataFrame has no rows.")
        self._encoder, self._columns = replace(encoder, transformation_columns=tuple(names)).apply(rows)
        called = self._encoder.transformation
        assert called is not None
        self.by_row = called.takes is Takes.ROW
        self.returned = self._encoder.columns
        if self.by_row:
            if drops_rows(encoder.nulls):
                raise DataError(
                    "nulls='drop' isn't possible with a transformation_fn that takes rows: drop them before."
                )
            for name, column in zip(names, rows.columns, strict=True):
                check_kept(name, column.type)
        instants = {name: shown.words.replace("_ntz", "") for name, shown in called.shown.items()}
        same = {column.name for column in arguments if instants.get(column.name) == column.kind.replace("_ntz", "")}
        kinds = {column.name: column.kind for column in arguments if column.name in same | encoder.categories.keys()}
        self.schema = TransformedSchema(list(self._columns), called, kinds)
        self.arguments = arguments
        self.raw = rows
        self._inner = inner
        self._types = {name: get_read_type(column.type) for name, column in zip(names, rows.columns, strict=True)}

    def make_kept_rows(self, encoder: RowEncoder) -> KeptRows | None:
        """How ranks keep the rows for a function that takes rows; None: it takes frames, and is called once.

        Args:
            encoder: of each batch.
        """
        if not self.by_row:
            return None
        width = estimate_row_bytes(self._inner.find_longest_row(self.arguments), len(self._types))
        return KeptRows.of(self._types, width, encoder)

    def read_first_rows(
        self, fed: Sequence[Readable], encoder: RowEncoder
    ) -> tuple[pyarrow.RecordBatch, RowEncoder, list[Readable]]:
        """See `Source.read_first_rows`."""
        plain = replace(encoder, marker=None, decoders={}, categories={}, transformation=None)
        rows = pyarrow.RecordBatch.from_arrays(list(self._columns.values()), names=list(self._columns))
        return plain.to_numbers(rows, dtypes=[column.dtype for column in fed]), self._encoder, list(fed)

    def find_longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """See `Source.find_longest`: to measure it, the function would have to be called for each row once more."""
        raise DataError(
            f"padding of column {fed[positions[0]].name!r}, which transformation_fn returns, needs the array's length: "
            "set input_shapes (or label_shapes)."
        )


def _drop_marks(rows: pyarrow.RecordBatch, name: str | None) -> pyarrow.RecordBatch:
    """Return the first rows without the column of marks, if they have one.

    Raises:
        DataError: a mark is missing.
    """
    if "marker" not in rows.schema.names:
        return rows
    if rows.column("marker").null_count:
        raise make_marks_error(name)
    return rows.select([column for column in rows.schema.names if column != "marker"])


def _collect_first(frame: DataFrame) -> pyarrow.RecordBatch:
    return collect_batch(frame.limit(SAMPLE_ROWS))


def collect_batch(frame: DataFrame) -> pyarrow.RecordBatch:
    """Collect the rows of a small DataFrame."""
    if hasattr(frame, "toArrow"):
        table = frame.toArrow()
    else:  # Spark 3.5
        table = pyarrow.Table.from_pandas(frame.toPandas(), preserve_index=False)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pyarrow.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0]
