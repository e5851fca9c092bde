"""Finds the types and shapes that a model's inputs and labels need: by trying it on the first rows, on the driver.

What fails here would have failed on every rank, minutes later. The part that runs the model is its framework's `Trial`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Field, matrix_of
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import Columns


@dataclass(frozen=True)
class Fields:
    """What the ranks' batches are made of.

    Attributes:
        outputs: [labels] values a row that the model returns.
    """

    inputs: tuple[Field, ...]
    labels: tuple[Field, ...]
    weight: Field | None
    outputs: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[Field, ...]:
        """In the order of the columns."""
        return (*self.inputs, *self.labels, *((self.weight,) if self.weight else ()))


class Trial(Protocol):
    """A framework's model, its losses and metrics, to be tried.

    Attributes:
        floating: the model's floating-point type, "float32" or "float64".
        takes: what is called with the inputs, for messages.
    """

    floating: str
    takes: str

    def positional(self) -> tuple[int, float]:
        """The least and the most inputs of the model."""

    def run(self, columns: Columns, fields: Fields) -> tuple[int, ...]:
        """One step of a copy of the model on the first rows.

        Returns:
            [labels] how many values it gives for a row.

        Raises:
            DataError: no other types would help.
            Exception: whatever the framework does not like.
        """


def fitting_fields(columns: Columns, trial: Trial, input_shapes: Sequence[Sequence[int]] | None) -> Fields:
    """The fields with which the model, and the losses, work.

    Features of whole numbers are tried as int64 and then as float32; labels as their column has them, then as the
    other one of the two (class numbers that StringIndexer has written as doubles; 0 and 1 for a BCELoss).

    Args:
        input_shapes: of each input, beginning with -1; None: found.

    Raises:
        DataError: none works; the text has what the framework said.
    """
    floating = trial.floating
    groups = _inputs(columns, trial, input_shapes)
    natural = [_input_fields(columns, group, shape, floating, whole=True) for group, shape in groups]
    floated = [_input_fields(columns, group, shape, floating, whole=False) for group, shape in groups]
    input_choices = [natural] + ([floated] if floated != natural else [])
    label_choices = list(
        itertools.product(*(_label_fields(columns, place, floating) for place in range(len(columns.labels))))
    )
    weight = None
    if columns.weight is not None:
        last = len(columns.fed) - 1
        weight = Field((columns.weight.name,), (f"c{last}",), (1,), floating)
    first_error: Exception | None = None
    for inputs, labels in itertools.product(input_choices, label_choices):
        fields = Fields(tuple(inputs), tuple(labels), weight)
        try:
            outputs = trial.run(columns, fields)
        except DataError:
            raise
        except Exception as error:
            first_error = first_error or error
            continue
        return replace(fields, outputs=outputs)
    assert first_error is not None
    tried = Fields(tuple(natural), tuple(choice for choice in label_choices[0]), weight)
    raise DataError(
        f"the model and the losses do not fit the columns: a batch of the first rows failed on the driver with "
        f"{type(first_error).__name__}: {str(first_error).rstrip('.')}. {shown(tried)}"
    ) from first_error


def class_error(column: str, found: int, classes: int) -> DataError:
    """A label's number is not among those of the classes."""
    return DataError(
        f"column {column!r} holds the class {found}, and the model's output has {classes} classes, which are numbered "
        "from 0: give it as many outputs as there are classes, or number them anew (pyspark.ml.feature.StringIndexer)."
    )


def strange(columns: Columns, fields: Fields) -> str:
    for field in fields.all:
        for row in matrix_of(columns.rows, field):
            if row.dtype.kind == "f" and not all(map(math.isfinite, row.tolist())):
                return _strange_value(field, row.tolist())
    return ""


def _strange_value(field: Field, row: list[float]) -> str:
    """Names the column of a row's first number that is not finite."""
    place = next(place for place, value in enumerate(row) if not math.isfinite(value))
    for name, width in zip(field.names, field.widths, strict=True):
        if place < width:
            return f"column {name!r} holds {row[place]}" + (f" at place {place} of an array" if width > 1 else "")
        place -= width
    raise AssertionError(field)


def _inputs(
    columns: Columns, trial: Trial, shapes: Sequence[Sequence[int]] | None
) -> list[tuple[list[int], tuple[int, ...] | None]]:
    """Which columns make up each input, and its shape where the user has said it."""
    count = len(columns.features)
    alone = [[number] for number in range(count)]
    together = [list(range(count))]
    if shapes is not None:
        said = [tuple(shape[1:]) for shape in shapes]
        if len(said) == count:
            return list(zip(alone, said, strict=True))
        if len(said) == 1:
            return list(zip(together, said, strict=True))
        raise DataError(
            f"input_shapes has {len(said)} shapes for {count} feature columns: one for each, or one for all."
        )
    least, most = trial.positional()
    if least <= count <= most and not (least == 1 and count > 1 and most > count):
        return [(group, None) for group in alone]
    if least <= 1 <= most:
        return [(group, None) for group in together]
    raise DataError(
        f"{trial.takes} takes {least if least == most else f'{least} to {most}'} inputs, and there "
        f"are {count} feature columns ({', '.join(repr(one.name) for one in columns.features)}): name as many in "
        "feature_cols, or join columns to vectors (pyspark.ml.feature.VectorAssembler)."
    )


def _input_fields(
    columns: Columns, group: list[int], shape: tuple[int, ...] | None, floating: str, *, whole: bool
) -> Field:
    readables = [columns.features[number] for number in group]
    widths = [columns.widths[number] for number in group]
    integers = whole and all(one.dtype == "int64" for one in readables) and len(group) == 1
    if shape is None:
        # A scalar of whole numbers may be an index: [rows]. Numbers to be weighed stand in a matrix.
        shape = () if integers and not readables[0].is_array else (sum(widths),)
        if len(group) == 1 and readables[0].shape:
            shape = readables[0].shape
    elif math.prod(shape) != sum(widths):
        raise DataError(
            f"input_shapes says {[-1, *shape]} for {', '.join(repr(one.name) for one in readables)}, which has "
            f"{sum(widths)} values a row, not {math.prod(shape)}."
        )
    if any(one.dtype == "float64" for one in readables):
        floating = "float64"  # seconds since 1970: in float32 they would be rounded to minutes
    return _field(columns, readables, group, "int64" if integers else floating, shape)


def _label_fields(columns: Columns, place: int, floating: str) -> list[Field]:
    """The forms in which a label may be wanted, the likeliest first."""
    number = len(columns.features) + place
    column, width = columns.labels[place], columns.widths[len(columns.features) + place]
    shape = column.shape or ((width,) if column.is_array else ())
    floating = "float64" if column.dtype == "float64" else floating
    own = _field(columns, [column], [number], "int64" if column.dtype == "int64" or column.kept else floating, shape)
    other = replace(own, dtype=floating if own.dtype == "int64" else "int64")
    return [own, other] if other.dtype != "int64" or _all_whole(columns, own) else [own]


def _all_whole(columns: Columns, field: Field) -> bool:
    matrix = matrix_of(columns.rows, replace(field, dtype="float64"))
    return bool((matrix == matrix.round()).all())


def _field(
    columns: Columns, readables: Sequence[Readable], numbers: Sequence[int], dtype: str, shape: tuple[int, ...]
) -> Field:
    padding = tuple(columns.padding[number] for number in numbers)
    return Field(
        tuple(one.name for one in readables),
        tuple(f"c{number}" for number in numbers),
        tuple(columns.widths[number] for number in numbers),
        dtype,
        shape,
        padding if any(number is not None for number in padding) else (),
        # What is filled up may hold numbers that are no bytes.
        readables[0].kept if len(readables) == 1 and padding == (None,) else "",
    )


def shown(fields: Fields) -> str:
    """Inputs and labels in words."""
    inputs = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.inputs)
    labels = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.labels)
    return f"The model was given {inputs}; the loss the labels {labels}. input_shapes and label_shapes change shapes."
