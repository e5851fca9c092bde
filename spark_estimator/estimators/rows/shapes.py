"""Finds the types and shapes that a model's inputs and labels need, by trying it on the first rows on the driver.

Without this trial, every rank would raise the error minutes later. A framework's `Trial` runs the model.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy
import pyarrow

from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Array, Field, make_matrix
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import RowSample


@dataclass(frozen=True)
class Fields:
    """The fields of the ranks' batches.

    Attributes:
        outputs: [labels] values a row that the model returns.
    """

    inputs: tuple[Field, ...]
    labels: tuple[Field, ...]
    weight: Field | None
    outputs: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[Field, ...]:
        """Return the fields in the order of the columns."""
        return (*self.inputs, *self.labels, *((self.weight,) if self.weight else ()))

    def matrices(self, rows: pyarrow.RecordBatch) -> list[Array]:
        """Return [fields] matrices [rows, width] of the first rows, to try a model with; see `all`."""
        return [make_matrix(rows, field, source=name_first_rows(rows)) for field in self.all]


class LabelError(Exception):
    """The losses of labels failed in a trial.

    Attributes:
        errors: by the number of the label, the framework's error.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(errors)
        self.errors = errors


class MetricError(Exception):
    """A metric failed in a trial, and the losses did not; the framework's error is the cause."""


class Trial(Protocol):
    """A framework's model, losses and metrics, to try on the first rows.

    Attributes:
        floating: the model's floating-point type, "float32" or "float64".
        takes: what the inputs are passed to, for messages.
        by_name: the model gets batches by the names of columns.
    """

    floating: str
    takes: str
    by_name: bool

    def count_positional(self) -> tuple[int, float]:
        """Return the least and the most inputs of the model."""

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        """Run one step of a copy of the model on the first rows.

        Returns:
            [labels] how many values it gives for a row.

        Raises:
            DataError: other types would fail, too.
            LabelError: another type of those labels is tried next.
            Exception: the framework's error; other types of all fields are tried next.
        """


# A trial that can't say which label failed is repeated for this many combinations of types.
_COMBINATIONS = 16


def find_fields(sample: RowSample, trial: Trial, input_shapes: Sequence[Sequence[int]] | None) -> Fields:
    """Return the fields with which the model, and the losses, work.

    Integer features are tried as int64, then as float32; labels as the column's type, then as the other of the
    two (StringIndexer writes class numbers as doubles; BCELoss wants 0 and 1 as floats).

    Args:
        input_shapes: of each input, starting with -1; None: inferred.

    Raises:
        DataError: none works; the text has the framework's error.
    """
    if not sample.columns.labels:
        return _find_fields_by_name(sample, trial)
    floating = trial.floating
    groups = _group_inputs(sample, trial, input_shapes)
    natural = [_make_input_field(sample, group, shape, floating, whole=True) for group, shape in groups]
    floated = [_make_input_field(sample, group, shape, floating, whole=False) for group, shape in groups]
    input_choices = [natural] + ([floated] if floated != natural else [])
    label_choices = [_make_label_fields(sample, position, floating) for position in range(len(sample.columns.labels))]
    weight = None
    if sample.columns.weight is not None:
        last = len(sample.columns.fed) - 1
        weight = Field((sample.columns.weight.name,), (f"c{last}",), (1,), floating)
    first_error: Exception | None = None
    for labels in _combine_labels(label_choices):
        is_named = True
        for inputs in input_choices:
            try:
                return _run(trial, sample.rows, Fields(tuple(inputs), labels, weight), label_choices)
            except DataError:
                raise
            except LabelError as error:
                first_error = first_error or next(iter(error.errors.values()))
            except Exception as error:
                first_error, is_named = first_error or error, False
        if is_named:
            break
    assert first_error is not None
    tried = Fields(tuple(natural), tuple(choices[0] for choices in label_choices), weight)
    if isinstance(first_error, MetricError):
        raise DataError(f"{first_error} {describe_fields(tried)}") from first_error
    raise DataError(
        "the model and the losses don't fit the columns: a batch of the first rows failed on the driver with "
        f"{type(first_error).__name__}: {str(first_error).rstrip('.')}. {describe_fields(tried)}"
        + _suggest_remedy(first_error, tried, sample)
    ) from first_error


def _combine_labels(choices: Sequence[Sequence[Field]]) -> Iterator[tuple[Field, ...]]:
    """Yield each label's first type, each one's last type, and some mixtures, without repetitions."""
    first, last = tuple(fields[0] for fields in choices), tuple(fields[-1] for fields in choices)
    mixtures = itertools.islice(itertools.product(*choices), _COMBINATIONS)
    return iter(dict.fromkeys((first, last, *mixtures)))


def _run(trial: Trial, rows: pyarrow.RecordBatch, fields: Fields, choices: Sequence[Sequence[Field]]) -> Fields:
    """Return the fields with which the trial succeeds, where a label whose loss fails has its last type.

    Raises:
        LabelError: no type of a label fits; the error is that of its first type.
    """
    failures: dict[int, Exception] = {}
    while True:
        try:
            return replace(fields, outputs=trial.run(rows, fields))
        except LabelError as error:
            labels = list(fields.labels)
            for number, cause in error.errors.items():
                first = failures.setdefault(number, cause)
                if labels[number] == choices[number][-1]:
                    raise LabelError({number: first}) from first
                labels[number] = choices[number][-1]
            fields = replace(fields, labels=tuple(labels))


def _find_fields_by_name(sample: RowSample, trial: Trial) -> Fields:
    """Return one field for each name that a function of rows has returned, in the type of its values."""
    inputs = []
    for number, (column, width) in enumerate(zip(sample.columns.features, sample.widths, strict=True)):
        kind = sample.rows.schema.field(f"c{number}").type
        dtype = numpy.dtype((kind.value_type if column.is_array else kind).to_pandas_dtype())
        shape = column.shape or ((width,) if column.is_array else ())
        inputs.append(Field((column.name,), (f"c{number}",), (width,), dtype.name, shape))
    fields = Fields(tuple(inputs), (), None)
    return replace(fields, outputs=trial.run(sample.rows, fields))


def make_class_error(column: str, label: int, classes: int) -> DataError:
    """Return the error for a class number that the model has no output for."""
    return DataError(
        f"column {column!r} contains class {label}, but the model's output has {classes} classes, numbered from 0. "
        "Give the model one output per class, or renumber the classes (pyspark.ml.feature.StringIndexer)."
    )


def find_not_finite(rows: pyarrow.RecordBatch, fields: Fields) -> str:
    """Return a column whose first rows hold NaN or infinity; empty without one."""
    for field, matrix in zip(fields.all, fields.matrices(rows), strict=True):
        for row in matrix:
            if row.dtype.kind == "f" and not all(map(math.isfinite, row.tolist())):
                return _describe_not_finite(field, row.tolist())
    return ""


def _describe_not_finite(field: Field, row: list[float]) -> str:
    """Return the column of a row's first value that is not finite."""
    index, value = next((index, value) for index, value in enumerate(row) if not math.isfinite(value))
    for name, width in zip(field.names, field.widths, strict=True):
        if index < width:
            where = f" at index {index} of an array" if width > 1 else ""
            remedy = "Filter such rows of the DataFrame, or replace the value"
            if math.isnan(value) and width == 1:  # "drop" leaves NaN in arrays
                remedy = "Drop such rows (nulls='drop') or replace the value"
            return f"column {name!r} contains {value}{where}. {remedy}"
        index -= width
    raise AssertionError(field)


def _group_inputs(
    sample: RowSample, trial: Trial, shapes: Sequence[Sequence[int]] | None
) -> list[tuple[list[int], tuple[int, ...] | None]]:
    """Return the columns of each input, and its shape if input_shapes has it."""
    count = len(sample.columns.features)
    alone = [[number] for number in range(count)]
    together = [list(range(count))]
    if shapes is not None:
        extents = [tuple(shape[1:]) for shape in shapes]
        if len(extents) == count:
            return list(zip(alone, extents, strict=True))
        if len(extents) == 1:
            return list(zip(together, extents, strict=True))
        raise DataError(
            f"input_shapes has {len(extents)} shapes for {count} feature columns. Give one per column, or one for all."
        )
    least, most = trial.count_positional()
    if most == 0:  # all of its arguments are keywords
        return [(group, None) for group in alone]
    if least <= count <= most and not (least == 1 and count > 1 and most > count):
        return [(group, None) for group in alone]
    if least <= 1 <= most:
        return [(group, None) for group in together]
    raise DataError(
        f"{trial.takes} takes {least if least == most else f'{least} to {most}'} inputs, but there are {count} feature "
        f"columns ({', '.join(repr(column.name) for column in sample.columns.features)}). List that many columns in "
        "feature_cols, or combine columns into vectors (pyspark.ml.feature.VectorAssembler)."
    )


def _make_input_field(
    sample: RowSample, group: list[int], shape: tuple[int, ...] | None, floating: str, *, whole: bool
) -> Field:
    readables = [sample.columns.features[number] for number in group]
    widths = [sample.widths[number] for number in group]
    integers = whole and all(column.dtype == "int64" for column in readables) and len(group) == 1
    if shape is None:
        # A scalar of whole numbers may be an index: [rows]. Numbers that a layer multiplies with weights are a matrix.
        shape = () if integers and not readables[0].is_array else (sum(widths),)
        if len(group) == 1 and readables[0].shape:
            shape = readables[0].shape
    elif math.prod(shape) != sum(widths):
        raise DataError(
            f"input_shapes has {[-1, *shape]} for {', '.join(repr(column.name) for column in readables)}, which has "
            f"{sum(widths)} values per row, not {math.prod(shape)}."
        )
    if any(column.dtype == "float64" for column in readables):
        floating = "float64"  # seconds since 1970: in float32 they would be rounded to minutes
    return _make_field(sample, readables, group, "int64" if integers else floating, shape)


def _make_label_fields(sample: RowSample, position: int, floating: str) -> list[Field]:
    """Return the types in which a loss may want a label, the most likely first."""
    number = len(sample.columns.features) + position
    column, width = sample.columns.labels[position], sample.widths[number]
    shape = column.shape or ((width,) if column.is_array else ())
    floating = "float64" if column.dtype == "float64" else floating
    natural = _make_field(
        sample, [column], [number], "int64" if column.dtype == "int64" or column.kept else floating, shape
    )
    other = replace(natural, dtype=floating if natural.dtype == "int64" else "int64")
    return [natural, other] if other.dtype != "int64" or _has_only_integers(sample, natural) else [natural]


def _has_only_integers(sample: RowSample, field: Field) -> bool:
    matrix = make_matrix(sample.rows, replace(field, dtype="float64"), source=name_first_rows(sample.rows))
    return bool((matrix == matrix.round()).all())


def _make_field(
    sample: RowSample, readables: Sequence[Readable], numbers: Sequence[int], dtype: str, shape: tuple[int, ...]
) -> Field:
    padding = tuple(sample.padding[number] for number in numbers)
    return Field(
        tuple(column.name for column in readables),
        tuple(f"c{number}" for number in numbers),
        tuple(sample.widths[number] for number in numbers),
        dtype,
        shape,
        padding if any(number is not None for number in padding) else (),
        # Padding may be numbers that are no bytes.
        readables[0].kept if len(readables) == 1 and padding == (None,) else "",
        tuple(column.time for column in readables),
        tuple(column.decoded for column in readables),
    )


#: The remedy for shapes that do not fit.
RESHAPE = " Set input_shapes or label_shapes to change the shapes."


def name_first_rows(rows: pyarrow.RecordBatch) -> str:
    """Return the name, in messages, of the rows that the driver tries a model on."""
    return f"the first {rows.num_rows} rows"


def describe_fields(fields: Fields) -> str:
    """Return types and shapes of inputs and labels, for messages."""
    inputs = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.inputs)
    labels = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.labels)
    return f"The model's inputs were {inputs}; the loss's labels {labels}."


def _suggest_remedy(error: Exception, fields: Fields, sample: RowSample) -> str:
    """Return a sentence on what to change, for those errors of a framework that show it; else empty."""
    text = str(error)
    if re.search(r"expected (scalar type|target dtype to be) Long", text):  # PyTorch's losses of classes
        name = fields.labels[0].name
        return (
            f" The loss takes integers as labels: cast the column, df.withColumn({name!r}, df[{name!r}].cast('long'))."
        )
    sizes = {column.name: column.ids for column in sample.columns.features if column.ids}
    if sizes and re.search(r"out of (range|bounds)|is not in \[", text):  # PyTorch's and TensorFlow's embeddings
        needed = ", ".join(f"{size} for {name!r}" for name, size in sizes.items())
        return f" Embeddings need as many rows as there are ids of categories: {needed}."
    return RESHAPE if re.search(r"shape|size|dimension", text, re.IGNORECASE) else ""
