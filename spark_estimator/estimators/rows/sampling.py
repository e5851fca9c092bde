"""Inspects a training's rows before it starts: which columns there are, and the first rows of them as Arrow.

A `Source` is a DataFrame, a set of Parquet files, or what a transformation makes of either; `sample_frame` and
`sample_files` answer the same questions for each. All that Spark is asked for is asked for here.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow

from spark_estimator.data.categories import CategoryEncoder, Uncounted, encoded, with_largest_ids
from spark_estimator.data.columns import (
    Readable,
    cast_columns,
    category,
    check_decoded,
    dropping_columns,
    raw,
    readable,
)
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import widths_of
from spark_estimator.data.first_rows import decoded
from spark_estimator.data.kept_rows import KeptRows, bytes_of_row, check_kept, lengths_of, read_back_as
from spark_estimator.data.nulls import Nulls, drops_rows, with_numbers
from spark_estimator.data.numbers import category_in, readable_in
from spark_estimator.data.parquet import DataFiles, FileRows
from spark_estimator.data.preparation import Preparation, marks_error
from spark_estimator.data.quoting import quoted
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.transformation import Takes
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.request import RowRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Enough to show whether arrays have one length, and whether doubles hold whole numbers.
SAMPLE_ROWS = 100
# Rows of files that are read at a time to find the longest one.
_ROWS_TO_MEASURE = 1 << 14
# The random columns by which CrossValidator and TrainValidationSplit split rows.
_TUNING_COLUMN = re.compile(r"(CrossValidator|TrainValidationSplit)_[0-9a-f]+_rand")
_Converter = TypeVar("_Converter", Decoder, CategoryEncoder)
_MARKER_KINDS = ("boolean", "int", "bigint", "tinyint", "smallint")


@dataclass(frozen=True)
class Columns:
    """The columns of a training.

    Attributes:
        features, labels: in the order of the model's inputs and outputs.
        weight: the column of sample weights; None: there is none.
        marker: the column that marks rows for validation; None: there is none.
        read: the columns to read: those above, or the arguments of a transformation.
        preparation: what is done to the columns read; it knows the shapes that users' functions return.
        kept: where ranks keep the columns read as they are, and prepare each batch; None: where they are read.
        statistics: "mean" or "median", by the features whose nulls it replaces; until it is known, 0 does.
        null_values: these statistics, once they are known.
    """

    features: tuple[Readable, ...]
    labels: tuple[Readable, ...]
    weight: Readable | None
    marker: Readable | None
    read: tuple[Readable, ...]
    preparation: Preparation
    kept: KeptRows | None = None
    statistics: Mapping[str, str] = field(default_factory=dict)
    null_values: Mapping[str, float] = field(default_factory=dict)

    @property
    def reading(self) -> Preparation:
        """The preparation where the columns are read."""
        return self.preparation if self.kept is None else self.kept

    @property
    def held_reading(self) -> Preparation:
        """The preparation where columns of files are read whose rows are all for validation."""
        apart = self.kept is None and not self.preparation.transforms_marked
        return self.preparation.untransformed if apart else self.reading

    @property
    def fed(self) -> tuple[Readable, ...]:
        """The columns that become tensors, in the order of ``c0``, ``c1`` and so on: features, labels, weight."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))

    @property
    def encoders(self) -> Mapping[str, CategoryEncoder]:
        """Of the features with categories, by name."""
        return self.preparation.encoders

    @property
    def uncounted(self) -> list[Uncounted]:
        """The encoders whose vocabularies are the most frequent values of the rows, which are not known yet."""
        return [encoder for encoder in self.encoders.values() if isinstance(encoder, Uncounted)]

    def with_encoders(self, encoders: Mapping[str, CategoryEncoder]) -> Columns:
        """The same columns with other ids of categories."""
        kept = self.kept
        if kept is not None and kept.then is not None:
            kept = replace(kept, then=replace(kept.then, encoders=encoders))
        return replace(self, preparation=replace(self.preparation, encoders=encoders), kept=kept)


@dataclass(frozen=True)
class RowSample:
    """The columns, and what their first rows show.

    Attributes:
        columns: of the training.
        rows: at most a hundred, as `Columns.fed` has them: ``c0``, ``c1``, ...
        widths: [columns fed] values per row; 1 for a scalar.
        padding: [columns fed] the fill value of shorter arrays; None: shorter arrays are an error.
        untransformed: `rows` under their own names, before the transformation, where rows for validation stay so.
    """

    columns: Columns
    rows: pyarrow.RecordBatch
    widths: tuple[int, ...]
    padding: tuple[float | None, ...]
    untransformed: pyarrow.RecordBatch | None = None


def sample_frame(frame: DataFrame, request: RowRequest) -> RowSample:
    """Finds the columns of a DataFrame and collects its first rows by a small Spark job; a second one measures arrays.

    Raises:
        DataError: a column is missing or cannot be trained on, or there are no rows.
    """
    return _sample(FrameSource(frame, request.decoders, request.encoders), request)


def sample_files(files: DataFiles, request: RowRequest) -> RowSample:
    """The same for Parquet files, which this process reads; no job is run.

    Raises:
        DataError: as `sample_frame`, or the files' columns differ.
    """
    return _sample(FileSource(files, request.decoders, request.encoders), request)


class Source(ABC):
    """Rows to inspect.

    Attributes:
        names: of all columns.
        arguments: the columns that a transformation gets; empty without one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.arguments: Sequence[Readable] = ()

    @abstractmethod
    def column(self, name: str) -> Readable:
        """How a column is read.

        Raises:
            DataError: the column is missing, or its type cannot be trained on.
        """

    @abstractmethod
    def first_rows(
        self, fed: Sequence[Readable], preparation: Preparation
    ) -> tuple[pyarrow.RecordBatch, Preparation, list[Readable]]:
        """At most a hundred rows, as ``c0``, ``c1`` and so on.

        Returns:
            The rows, and the preparation and the columns with the types and shapes that users' functions returned.
        """

    @abstractmethod
    def longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """The longest array, over all rows, of each of the columns at some positions."""


class _Untransformed(Source):
    """Rows as they are, which a transformation can be applied to."""

    @abstractmethod
    def raw(self, name: str) -> Readable:
        """A column as it is, for a transformation."""

    @abstractmethod
    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """At most a hundred rows, under the columns' own names."""

    @abstractmethod
    def longest_row(self, columns: Sequence[Readable]) -> int:
        """The most bytes, over all rows, that the texts and arrays of a row have together."""


class FrameSource(_Untransformed):
    """A DataFrame: each question about its rows is a Spark job."""

    def __init__(
        self, frame: DataFrame, decoders: Mapping[str, Decoder], encoders: Mapping[str, CategoryEncoder]
    ) -> None:
        self._frame = frame
        self._schema = frame.schema
        self._decoders = decoders
        self._encoders = encoders
        super().__init__(self._schema.names)

    def column(self, name: str) -> Readable:
        """As `Source.column`."""
        if name in self._encoders:
            return category(self._schema, name, self._encoders[name])
        return readable(self._schema, name, name in self._decoders)

    def raw(self, name: str) -> Readable:
        """As `_Untransformed.raw`."""
        return raw(self._schema, name)

    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """As `_Untransformed.raw_rows`."""
        return _first(self._frame.select(*(column.stored for column in columns)))

    def longest_row(self, columns: Sequence[Readable]) -> int:
        """As `_Untransformed.longest_row`: a Spark job."""
        from pyspark.sql import functions

        frame = self._frame.select(*(column.stored for column in columns))
        lengths = []
        for stored in frame.schema.fields:
            column = functions.col(quoted(stored.name))
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

    def first_rows(
        self, fed: Sequence[Readable], preparation: Preparation
    ) -> tuple[pyarrow.RecordBatch, Preparation, list[Readable]]:
        """As `Source.first_rows`."""
        # Floating columns as doubles, to see whether their numbers are whole.
        dtypes = ["float64" if column.dtype == "float32" and not column.is_array else column.dtype for column in fed]
        marker = None if preparation.marker is None else self.column(preparation.marker)
        rows = _without_marks(_first(self._cast(fed, dtypes, preparation.nulls, marker)), preparation.marker)
        rows = encoded(rows, by_position(preparation.encoders, fed))
        return decoded(rows, fed, preparation, [f"c{number}" for number in range(len(fed))])

    def longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """As `Source.longest`."""
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
        dropping = dropping_columns(columns, nulls)
        return frame.dropna(subset=dropping) if dropping else frame


class FileSource(_Untransformed):
    """Parquet files, which this process reads."""

    def __init__(
        self, files: DataFiles, decoders: Mapping[str, Decoder], encoders: Mapping[str, CategoryEncoder]
    ) -> None:
        self._files = files
        self._decoders = decoders
        self._encoders = encoders
        super().__init__(list(files.kinds))

    def column(self, name: str) -> Readable:
        """As `Source.column`."""
        if name in self._encoders:
            return category_in(self._files.kinds, name, self._encoders[name])
        return readable_in(self._files.kinds, name, name in self._decoders)

    def raw(self, name: str) -> Readable:
        """As `_Untransformed.raw`."""
        if name not in self._files.kinds:
            raise DataError(f"there is no column {name!r}: the files have {', '.join(map(repr, self.names))}.")
        return Readable(name, False, "", None, self._files.kinds[name])

    def raw_rows(self, columns: Sequence[Readable]) -> pyarrow.RecordBatch:
        """As `_Untransformed.raw_rows`."""
        names = [column.name for column in columns]
        self._files.check(names)
        for batch in self._files.batches(names, 0, 1, SAMPLE_ROWS):
            if batch.num_rows:
                return batch
        return pyarrow.RecordBatch.from_pydict({name: [] for name in names})

    def longest_row(self, columns: Sequence[Readable]) -> int:
        """As `_Untransformed.longest_row`: it reads all rows."""
        names = [column.name for column in columns]
        return max(map(lengths_of, self._files.batches(names, 0, 1, _ROWS_TO_MEASURE)), default=0)

    def first_rows(
        self, fed: Sequence[Readable], preparation: Preparation
    ) -> tuple[pyarrow.RecordBatch, Preparation, list[Readable]]:
        """As `Source.first_rows`."""
        self._files.check([*(column.name for column in fed), *filter(None, [preparation.marker])])
        rows = FileRows(self._files, replace(preparation, decoders={}))
        first = rows.first_rows([column.dtype for column in fed], SAMPLE_ROWS)
        first = _without_marks(first, preparation.marker)
        return decoded(first, fed, preparation, [f"c{number}" for number in range(len(fed))])

    def longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """As `Source.longest`."""
        read = list(range(len(fed))) if drops_rows(nulls) else list(positions)
        preparation = Preparation(tuple(fed[n].name for n in read), nulls=nulls, encoders=self._encoders)
        rows = FileRows(self._files, preparation)
        return rows.longest([fed[n].dtype for n in read], [f"c{read.index(position)}" for position in positions])


class TransformedSource(Source):
    """Another source's first rows, transformed. The constructor calls the transformation once."""

    def __init__(self, inner: _Untransformed, preparation: Preparation) -> None:
        transformation = preparation.transformation
        assert transformation is not None
        created = {edit[0] for edit in transformation.edited} - set(inner.names)
        names = [name for name in dict.fromkeys([*preparation.read, *transformation.removed]) if name not in created]
        arguments = [inner.raw(name) for name in names]
        for column in arguments:
            if column.name in preparation.decoders:
                check_decoded(column.name, column.kind)
            if column.name in preparation.encoders:
                preparation.encoders[column.name].check(column.name, column.kind)
        rows = inner.raw_rows(arguments)
        if not rows.num_rows:
            raise DataError("the DataFrame has no rows.")
        self._preparation, self._columns = replace(preparation, transformation_columns=tuple(names)).passed(rows)
        assert self._preparation.transformation is not None
        self._shown = self._preparation.transformation.shown
        self.by_row = self._preparation.transformation.takes is Takes.ROW
        self.returned = self._preparation.columns
        if self.by_row:
            if drops_rows(preparation.nulls):
                raise DataError(
                    "nulls='drop' isn't possible with a transformation_fn that takes rows: drop them before."
                )
            for name, column in zip(names, rows.columns, strict=True):
                check_kept(name, column.type)
        super().__init__(list(self._columns))
        self.arguments = arguments
        self.raw = rows
        self._inner = inner
        self._types = {name: read_back_as(column.type) for name, column in zip(names, rows.columns, strict=True)}

    def kept(self, preparation: Preparation) -> KeptRows | None:
        """How ranks keep the rows for a function that takes rows; None: it takes frames, and is called once.

        Args:
            preparation: of each batch.
        """
        if not self.by_row:
            return None
        names = tuple(self._types)
        width = bytes_of_row(self._inner.longest_row(self.arguments), len(names))
        then = replace(preparation, marker=None)
        return KeptRows(names, preparation.marker, types=self._types, width=width, then=then)

    def column(self, name: str) -> Readable:
        """As `Source.column`."""
        column = readable_in({name: shown.words for name, shown in self._shown.items()}, name)
        shown = self._shown[name]
        # The function gets ids; `transform` reads categories.
        kinds = {raw.name: raw.kind for raw in self.arguments if raw.name in self._preparation.encoders}
        return replace(
            column,
            kind=kinds.get(name, column.kind),
            dtype="float32" if shown.is_bytes else column.dtype,
            shape=shown.shape,
            kept="uint8" if shown.is_bytes else "",
        )

    def first_rows(
        self, fed: Sequence[Readable], preparation: Preparation
    ) -> tuple[pyarrow.RecordBatch, Preparation, list[Readable]]:
        """As `Source.first_rows`."""
        plain = replace(preparation, marker=None, decoders={}, encoders={}, transformation=None)
        rows = pyarrow.RecordBatch.from_arrays(list(self._columns.values()), names=list(self._columns))
        return plain.batch(rows, [column.dtype for column in fed]), self._preparation, list(fed)

    def longest(self, fed: Sequence[Readable], positions: Sequence[int], nulls: Nulls) -> list[int]:
        """As `Source.longest`: to measure it, the function would have to be called for each row once more."""
        raise DataError(
            f"padding of column {fed[positions[0]].name!r}, which transformation_fn returns, needs the array's length: "
            "set input_shapes (or label_shapes)."
        )


def _sample(source: _Untransformed, request: RowRequest) -> RowSample:
    names, by_default = _names(source, request)
    request.check_categories(request.features or by_default)
    preparation = Preparation(
        tuple(names),
        request.marker,
        request.nulls,
        request.decoders,
        request.transformation,
        by_name=request.by_name,
        encoders=request.encoders,
    )
    transformed = TransformedSource(source, preparation) if request.transformation is not None else None
    prepared: Source = source if transformed is None else transformed
    if transformed is not None and transformed.by_row and request.by_name:
        names, by_default = list(transformed.returned), []
        preparation = replace(preparation, columns=transformed.returned)
        request = replace(request, labels=(), weight=None, ragged=Ragged())
    fed = [_column(prepared, name, by_default=name in by_default) for name in names]
    marker = _marker(prepared, request.marker)
    request.check_shared(fed)
    request.check_nulls(fed)
    statistics = request.statistics(fed[: len(fed) - len(request.labels) - (request.weight is not None)])
    preparation = replace(preparation, nulls=with_numbers(request.nulls, dict.fromkeys(statistics, 0.0)))
    read = {column.name for column in prepared.arguments or fed}
    unknown = next((name for name in request.decoders if name not in read), None)
    if unknown is not None:
        raise DataError(f"decoders refers to {unknown!r}, which isn't a column that is read: {', '.join(names)}.")
    rows, preparation, fed = prepared.first_rows(fed, preparation)
    if not rows.num_rows:
        raise DataError("the DataFrame has no rows" + (" without nulls." if drops_rows(request.nulls) else "."))
    untransformed = None
    if transformed is not None and not request.transform_validation:
        untransformed = transformed.raw
        _marker(source, request.marker)  # it decides before the function
        share = 0.0 if transformed.by_row else request.held_share  # ranks divide rows that they keep
        preparation = replace(preparation, transforms_marked=False, held_share=share)
    labels, weights = len(request.labels), 0 if request.weight is None else 1
    features = len(fed) - labels - weights
    padding = request.ragged.paddings(fed)
    widths = request.ragged.widths(
        widths_of(rows, [f"c{number}" for number in range(len(fed))]),
        fed,
        padding,
        features,
        lambda positions: prepared.longest(fed, positions, request.nulls),
    )
    columns = Columns(
        features=tuple(fed[:features]),
        labels=tuple(fed[features : features + labels]),
        weight=fed[-1] if weights else None,
        marker=marker,
        read=tuple(prepared.arguments) or (*fed, *([marker] if marker else [])),
        preparation=preparation,
        kept=None if transformed is None else transformed.kept(preparation),
        statistics=statistics,
    )
    first = with_largest_ids(rows, [column.ids for column in fed])
    return RowSample(columns, first, widths, padding, untransformed)


def by_position(by_name: Mapping[str, _Converter], fed: Sequence[Readable]) -> dict[str, _Converter]:
    """What converts some columns, under the names ``c0``, ``c1`` and so on of the columns fed."""
    return {f"c{number}": by_name[column.name] for number, column in enumerate(fed) if column.name in by_name}


def _names(source: Source, request: RowRequest) -> tuple[list[str], list[str]]:
    """The columns that become tensors, and those of them that are features by default.

    Raises:
        DataError: there is no feature.
    """
    others = {*request.labels, *filter(None, (request.weight, request.marker))}
    removed = request.transformation.removed if request.transformation else ()
    rest = [name for name in source.names if name not in (*others, *removed) and not _TUNING_COLUMN.fullmatch(name)]
    features = rest if request.features is None else list(request.features)
    if not features:
        raise DataError(
            "there are no feature columns: every column is a label, the sample weight or the validation column."
        )
    names = [*features, *request.labels, *([request.weight] if request.weight else [])]
    return names, rest if request.features is None else []


def _column(source: Source, name: str, *, by_default: bool) -> Readable:
    """A column; `by_default`: it is a feature because feature_cols is not set, which an error mentions."""
    try:
        return source.column(name)
    except DataError as error:
        if not by_default:
            raise
        raise DataError(
            f"{error} (feature_cols is not set, so every column that has no other role is a feature.)"
        ) from error


def _marker(source: Source, name: str | None) -> Readable | None:
    """The column that marks rows for validation; None without.

    Raises:
        DataError: the column does not exist, or its type cannot hold 0 and 1.
    """
    if name is None:
        return None
    column = source.column(name)
    check_marker(name, column.kind)
    return column


def check_marker(name: str, kind: str) -> None:
    """Raises DataError if a column's Spark type cannot mark rows for validation."""
    if kind not in _MARKER_KINDS:
        raise DataError(
            f"validation={name!r}: the column has type {kind}. It must be boolean, or an integer column of 0 and 1."
        )


def _without_marks(rows: pyarrow.RecordBatch, name: str | None) -> pyarrow.RecordBatch:
    """The first rows without the column of marks, if they have one.

    Raises:
        DataError: a mark is missing.
    """
    if "marker" not in rows.schema.names:
        return rows
    if rows.column("marker").null_count:
        raise marks_error(name)
    return rows.select([column for column in rows.schema.names if column != "marker"])


def _first(frame: DataFrame) -> pyarrow.RecordBatch:
    return collected(frame.limit(SAMPLE_ROWS))


def collected(frame: DataFrame) -> pyarrow.RecordBatch:
    """The rows of a small DataFrame."""
    if hasattr(frame, "toArrow"):
        table = frame.toArrow()
    else:  # Spark 3.5
        table = pyarrow.Table.from_pandas(frame.toPandas(), preserve_index=False)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pyarrow.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0]
