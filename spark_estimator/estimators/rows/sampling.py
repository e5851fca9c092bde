"""Finds a training's columns before it starts, and what their first rows show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow

from spark_estimator.data.categories import CategoryEncoder, Uncounted, set_largest_ids
from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows
from spark_estimator.data.nulls import set_numbers
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.schemas import Schema
from spark_estimator.estimators.rows.sources import (
    FileSource,
    FrameSource,
    Source,
    TransformedSource,
    UntransformedSource,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The random columns by which CrossValidator and TrainValidationSplit split rows.
_TUNING_COLUMN = re.compile(r"(CrossValidator|TrainValidationSplit)_[0-9a-f]+_rand")
_MARKER_KINDS = ("boolean", "int", "bigint", "tinyint", "smallint")


@dataclass(frozen=True)
class Columns:
    """The columns of a training.

    Attributes:
        features, labels: in the order of the model's inputs and outputs.
        weight: the column of sample weights; None: there is none.
        marker: the column that marks rows for validation; None: there is none.
        read: the columns to read: those above, or the arguments of a transformation.
        encoder: what is done to the columns read; it knows the shapes that users' functions return.
        kept: where ranks keep the columns read as they are, and prepare each batch; None: where they are read.
        statistics: "mean" or "median", by the features whose nulls it replaces; until it is known, 0 does.
        null_values: these statistics, once they are known.
    """

    features: tuple[Readable, ...]
    labels: tuple[Readable, ...]
    weight: Readable | None
    marker: Readable | None
    read: tuple[Readable, ...]
    encoder: RowEncoder
    kept: KeptRows | None = None
    statistics: Mapping[str, str] = field(default_factory=dict)
    null_values: Mapping[str, float] = field(default_factory=dict)

    @property
    def reading(self) -> RowEncoder:
        """Return the encoder where the columns are read."""
        return self.encoder if self.kept is None else self.kept

    @property
    def held_reading(self) -> RowEncoder:
        """Return the encoder where columns of files are read whose rows are all for validation."""
        apart = self.kept is None and not self.encoder.transforms_marked
        return self.encoder.untransformed if apart else self.reading

    @property
    def fed(self) -> tuple[Readable, ...]:
        """Return the columns that become tensors, in the order of ``c0``, ``c1``, ...: features, labels, weight."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))

    @property
    def uncounted(self) -> list[Uncounted]:
        """Return the encoders whose vocabularies are the most frequent values of the rows, which are not known yet."""
        return [encoder for encoder in self.encoder.categories.values() if isinstance(encoder, Uncounted)]

    def with_categories(self, categories: Mapping[str, CategoryEncoder]) -> Columns:
        """Return the same columns with other ids of categories."""
        return self._with_encoder(replace(self.encoder, categories=categories))

    def with_fields(self, fields: Sequence[Field]) -> Columns:
        """Return the same columns, of which these fields are made."""
        return self._with_encoder(self.encoder.with_fields(fields))

    def _with_encoder(self, encoder: RowEncoder) -> Columns:
        return replace(self, encoder=encoder, kept=self.kept and self.kept.with_encoder(encoder))


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
    """Find the columns of a DataFrame and collect its first rows by a small Spark job; a second one measures arrays.

    Raises:
        DataError: a column is missing or cannot be trained on, or there are no rows.
    """
    return _take_sample(FrameSource(frame, request.decoders, request.encoders), request)


def sample_files(files: DataFiles, request: RowRequest) -> RowSample:
    """Find the columns of Parquet files, which this process reads, and their first rows; no job is run.

    Raises:
        DataError: as `sample_frame`, or the files' columns differ.
    """
    return _take_sample(FileSource(files, request.decoders, request.encoders), request)


def _take_sample(source: UntransformedSource, request: RowRequest) -> RowSample:
    names, by_default = _find_names(source.schema, request)
    request.check_categories(request.features or by_default)
    encoder = RowEncoder(
        tuple(names),
        nulls=request.nulls,
        decoders=request.decoders,
        categories=request.encoders,
        marker=request.marker,
        transformation=request.transformation,
        by_name=request.by_name,
    )
    transformed = TransformedSource(source, encoder) if request.transformation is not None else None
    prepared: Source = source if transformed is None else transformed
    if transformed is not None and transformed.by_row and request.by_name:
        names, by_default = list(transformed.returned), []
        encoder = replace(encoder, columns=transformed.returned)
        request = replace(request, labels=(), weight=None, ragged=Ragged())
    fed = [_get_column(prepared.schema, name, by_default=name in by_default) for name in names]
    marker = _find_marker(prepared.schema, request.marker)
    request.check_shared(fed)
    request.check_nulls(fed)
    labels, weights = len(request.labels), 0 if request.weight is None else 1
    features = len(fed) - labels - weights
    statistics = request.find_statistics(fed[:features])
    encoder = replace(encoder, nulls=set_numbers(request.nulls, dict.fromkeys(statistics, 0.0)))
    read = {column.name for column in prepared.arguments or fed}
    unknown = next((name for name in request.decoders if name not in read), None)
    if unknown is not None:
        raise DataError(f"decoders refers to {unknown!r}, which isn't a column that is read: {', '.join(names)}.")
    shown = prepared.inspect(fed, encoder, request.ragged, features)
    encoder, inspected = shown.encoder, shown.columns
    untransformed = None
    if transformed is not None and not request.transform_validation:
        untransformed = transformed.raw
        _find_marker(source.schema, request.marker)  # it decides before the function
        share = 0.0 if transformed.by_row else request.held_share  # ranks divide rows that they keep
        encoder = replace(encoder, transforms_marked=False, held_share=share)
    columns = Columns(
        features=inspected[:features],
        labels=inspected[features : features + labels],
        weight=inspected[-1] if weights else None,
        marker=marker,
        read=tuple(prepared.arguments) or (*inspected, *([marker] if marker else [])),
        encoder=encoder,
        kept=None if transformed is None else transformed.make_kept_rows(encoder),
        statistics=statistics,
    )
    first = set_largest_ids(shown.rows, [column.ids for column in inspected])
    return RowSample(columns, first, shown.widths, shown.padding, untransformed)


def _find_names(schema: Schema, request: RowRequest) -> tuple[list[str], list[str]]:
    """Return the columns that become tensors, and those of them that are features by default.

    Raises:
        DataError: there is no feature.
    """
    others = {*request.labels, *filter(None, (request.weight, request.marker))}
    removed = request.transformation.removed if request.transformation else ()
    rest = [name for name in schema.names if name not in (*others, *removed) and not _TUNING_COLUMN.fullmatch(name)]
    features = rest if request.features is None else list(request.features)
    if not features:
        raise DataError(
            "there are no feature columns: every column is a label, the sample weight or the validation column."
        )
    names = [*features, *request.labels, *([request.weight] if request.weight else [])]
    return names, rest if request.features is None else []


def _get_column(schema: Schema, name: str, *, by_default: bool) -> Readable:
    """Return a column; `by_default`: it is a feature because feature_cols is not set, which an error mentions."""
    try:
        return schema.get_column(name)
    except DataError as error:
        if not by_default:
            raise
        raise DataError(
            f"{error} (feature_cols is not set, so every column that has no other role is a feature.)"
        ) from error


def _find_marker(schema: Schema, name: str | None) -> Readable | None:
    """Return the column that marks rows for validation; None without.

    Raises:
        DataError: the column does not exist, or its type cannot hold 0 and 1.
    """
    if name is None:
        return None
    column = schema.get_column(name)
    check_marker(name, column.kind)
    return column


def check_marker(name: str, kind: str) -> None:
    """Raise DataError if a column's Spark type cannot mark rows for validation."""
    if kind not in _MARKER_KINDS:
        raise DataError(
            f"validation={name!r}: the column has type {kind}. It must be boolean, or an integer column of 0 and 1."
        )
