"""Looks at a DataFrame before anything starts: which columns are what, and a few rows of them as Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow

from spark_estimator.data.columns import Readable
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import widths_of
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.preparation import Preparation
from spark_estimator.data.row_lengths import Ragged
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError
from spark_estimator.estimators.checks import spark_frame
from spark_estimator.estimators.rows.sources import FileSource, FrameSource, Source, TransformedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# By which CrossValidator and TrainValidationSplit tell their parts of the rows apart.
_OF_TUNING = re.compile(r"(CrossValidator|TrainValidationSplit)_[0-9a-f]+_rand")


@dataclass(frozen=True)
class Wanted:
    """The columns that a training asks for, and what is done with them.

    Attributes:
        features: None: all columns that have no other part.
        labels: as the estimator's parameter has them.
        weight: of the rows; None without.
        marker: that marks rows for validation; None without.
        nulls: as in `columns.selected`.
        ragged: what is done with arrays of different lengths.
        decoders: by the column's name.
        transformation: None: there is none.
    """

    features: tuple[str, ...] | None
    labels: tuple[str, ...]
    weight: str | None
    marker: str | None
    nulls: str | float
    ragged: Ragged
    decoders: Mapping[str, Decoder]
    transformation: Transformation | None

    @classmethod
    def of(cls, value: Callable[[str], Any], marker: str | None) -> Wanted:
        """What the parameters of an estimator say.

        Args:
            value: gives one by its name.
        """
        features = value("feature_cols")
        function = value("transformation_fn")
        removed = tuple(value("transformation_removed_fields") or ())
        edited = tuple((*one[:2], tuple(one[2]), one[3]) for one in value("transformation_edit_fields") or ())
        if function is None and (removed or edited):
            raise ValueError("transformation_edit_fields and _removed_fields tell of transformation_fn, which is None.")
        return cls(
            None if features is None else tuple(features),
            tuple(value("label_cols")),
            value("sample_weight_col"),
            marker,
            value("nulls"),
            Ragged(value("padding"), value("input_shapes"), value("label_shapes")),
            {name: Decoder(name, one) for name, one in (value("decoders") or {}).items()},
            None if function is None else Transformation(function, edited, removed),
        )


@dataclass(frozen=True)
class Columns:
    """The columns that take part, and their first rows.

    Attributes:
        features, labels: in the order in which the model has them.
        weight: of the rows; None without.
        marker: that marks rows for validation; None without.
        rows: at most a hundred, as columns ``c0``, ``c1``, ...: features, labels, weight.
        widths: [columns] values a row; for scalars 1.
        padding: [columns] what shorter arrays are filled up with; None: they are refused.
        preparation: for these columns by their own names, with what the first rows have shown of the functions.
        read: the columns that are read: those above, or what a transformation is given.
    """

    features: tuple[Readable, ...]
    labels: tuple[Readable, ...]
    weight: Readable | None
    marker: Readable | None
    rows: pyarrow.RecordBatch
    widths: tuple[int, ...]
    padding: tuple[float | None, ...]
    preparation: Preparation
    read: tuple[Readable, ...]

    @property
    def fed(self) -> tuple[Readable, ...]:
        """Those that go into tensors."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))


def look_at(frame: DataFrame, wanted: Wanted) -> Columns:
    """Finds the columns, and runs one small job for the first rows; another one where arrays are to be filled up.

    Raises:
        DataError: a column is missing, cannot be trained on, or holds no rows that could be.
    """
    spark_frame("fit()", frame)
    if frame.isStreaming:
        raise DataError("the DataFrame is a stream, which has no last row: fit() in foreachBatch, or on a table.")
    return _looked(FrameSource(frame, wanted.decoders), wanted)


def look_at_files(files: DataFiles, wanted: Wanted) -> Columns:
    """The same for Parquet files, which this process reads; no job is run.

    Raises:
        DataError: as `look_at`, or the files' columns differ.
    """
    return _looked(FileSource(files, wanted.decoders), wanted)


def _looked(source: Source, wanted: Wanted) -> Columns:
    taken = {*wanted.labels, *filter(None, (wanted.weight, wanted.marker))}
    removed = wanted.transformation.removed if wanted.transformation else ()
    others = [name for name in source.names if name not in (*taken, *removed) and not _OF_TUNING.fullmatch(name)]
    chosen = others if wanted.features is None else list(wanted.features)
    if not chosen:
        raise DataError("there are no feature columns: all columns are labels, weights or marks.")
    names = [*chosen, *wanted.labels, *([wanted.weight] if wanted.weight else [])]
    preparation = Preparation(tuple(names), wanted.marker, wanted.nulls, wanted.decoders, wanted.transformation)
    if wanted.transformation is not None:
        source = TransformedSource(source, preparation)
    fed = [_read(source, name, chosen=wanted.features is None and name in others) for name in names]
    marking = source.read(wanted.marker) if wanted.marker else None
    if marking is not None and (
        marking.is_array or marking.kind not in ("boolean", "int", "bigint", "tinyint", "smallint")
    ):
        raise DataError(
            f"validation={wanted.marker!r}: a column of type {marking.kind}; it has to be boolean, or hold 0 and 1."
        )
    _check_fillings(fed, wanted)
    strange = next((name for name in wanted.decoders if name not in {one.name for one in source.given or fed}), None)
    if strange is not None:
        raise DataError(f"decoders names {strange!r}, which is no column that is read: {', '.join(names)}.")
    rows, preparation, fed = source.first_rows(fed, preparation)
    if not rows.num_rows:
        raise DataError("the DataFrame has no rows" + (" without nulls." if wanted.nulls == "drop" else "."))
    features, labels = fed[: len(chosen)], fed[len(chosen) : len(chosen) + len(wanted.labels)]
    padding = wanted.ragged.paddings(fed)
    widths = wanted.ragged.widths(
        widths_of(rows, [f"c{number}" for number in range(len(fed))]),
        fed,
        padding,
        len(features),
        lambda places: source.longest(fed, places, wanted.nulls),
    )
    return Columns(
        tuple(features),
        tuple(labels),
        fed[-1] if wanted.weight else None,
        marking,
        rows,
        widths,
        padding,
        preparation,
        tuple(source.given) or (*fed, *([marking] if marking else [])),
    )


def _read(source: Source, name: str, *, chosen: bool) -> Readable:
    """A column; `chosen`: not by the user, who is told so where it cannot be trained on."""
    try:
        return source.read(name)
    except DataError as error:
        if not chosen:
            raise
        raise DataError(
            f"{error} (feature_cols is not given: all columns but labels and weights are features.)"
        ) from error


def _check_fillings(fed: Sequence[Readable], wanted: Wanted) -> None:
    """Refuses fractions, and numbers beyond 64 bits, that shall stand among whole numbers."""
    if isinstance(wanted.nulls, str):
        return
    if float(wanted.nulls).is_integer() and abs(wanted.nulls) < 1 << 63:
        return
    for one in fed:
        if one.dtype == "int64" and not one.is_array:
            raise DataError(
                f"nulls={wanted.nulls!r}: column {one.name!r} of type {one.kind} has no such number. Take a whole one, "
                "or cast the column to double."
            )
