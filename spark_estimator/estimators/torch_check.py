"""Tries a PyTorch model on the first rows, on the driver, and so finds the types and shapes that its tensors need.

A batch goes forward and backward through a copy. What fails here would have failed on every rank, minutes later.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Field, matrix_of
from spark_estimator.errors import DataError
from spark_estimator.estimators.sampling import Columns
from spark_estimator.estimators.torch_training import Parts, loss_of, outputs_of, tensor_of


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


def fitting_fields(columns: Columns, parts: Parts, input_shapes: Sequence[Sequence[int]] | None) -> Fields:
    """The fields with which the model, and the losses, work.

    Features of whole numbers are tried as int64 and then as float32; labels as their column has them, then as the
    other one of the two (class numbers that StringIndexer has written as doubles; 0 and 1 for a BCELoss).

    Args:
        input_shapes: of each input, beginning with -1; None: found.

    Raises:
        DataError: none works; the text has what PyTorch said.
    """
    floating = _floating_type(parts.model)
    groups = _inputs(columns, parts.model, input_shapes)
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
            outputs = _try(columns, parts, fields)
        except DataError:
            raise
        except Exception as error:
            first_error = first_error or error
            continue
        return replace(fields, outputs=outputs)
    assert first_error is not None
    shown = Fields(tuple(natural), tuple(choice for choice in label_choices[0]), weight)
    raise DataError(
        f"the model and the losses do not fit the columns: a batch of the first rows failed on the driver with "
        f"{type(first_error).__name__}: {first_error}. {_shown(shown)}"
    ) from first_error


def _try(columns: Columns, parts: Parts, fields: Fields) -> tuple[int, ...]:
    """One step of a copy of the model. Returns how many values it gives for a row.

    Raises:
        Exception: whatever PyTorch does not like.
    """
    rows = columns.rows
    tensors = [tensor_of(matrix_of(rows, field).copy(), field) for field in fields.all]
    count = len(fields.inputs)
    labels = tensors[count : count + len(fields.labels)]
    weight = tensors[-1] if fields.weight else None
    model = copy.deepcopy(parts.model).cpu()
    state = torch.get_rng_state()
    try:
        model.train()
        if rows.num_rows == 1:
            model.eval()  # batch norm has nothing to say about a single row
        loss, outputs, shaped = loss_of(model, parts, tensors[:count], labels, weight)
        if loss.numel() != 1:
            raise DataError(f"the loss has the shape {list(loss.shape)}; it has to be one number (reduction='mean').")
        _check_outputs(parts, outputs, shaped, fields)
        loss.backward()
        for group, output, label in zip(parts.metrics, outputs, shaped, strict=True):
            for metric in group:
                float(torch.as_tensor(metric(output.detach(), label)))
    finally:
        torch.set_rng_state(state)
    if not math.isfinite(loss.item()):
        raise DataError(
            f"the loss of the first {rows.num_rows} rows is {loss.item()}: "
            f"{_strange(columns, fields) or 'the model computes it so from finite numbers'}."
        )
    widths = tuple(output.numel() // len(output) for output in outputs)
    if rows.num_rows > 2:
        model.eval()
        with torch.no_grad():
            fewer = outputs_of(model, [tensor[:-1] for tensor in tensors[:count]])
        for output, width, field in zip(fewer, widths, fields.labels, strict=True):
            if output.numel() != width * (rows.num_rows - 1):
                raise DataError(
                    f"the model's output for {field.name!r} has {width} values a row for {rows.num_rows} rows, and "
                    f"another number for one row less: it mixes rows, as [rows] and [rows, 1] do when they are added. "
                    f"{_shown(fields)}"
                )
    return widths


def _check_outputs(
    parts: Parts, outputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor], fields: Fields
) -> None:
    for loss, output, label, field in zip(parts.losses, outputs, labels, fields.labels, strict=True):
        if isinstance(loss, nn.CrossEntropyLoss) and output.numel() == len(output):
            raise DataError(
                "CrossEntropyLoss compares several outputs, one for each class; the model's output for "
                f"{field.name!r} has one, so that the loss would always be 0. Give it an output for each class, or use "
                "BCEWithLogitsLoss."
            )
        if output.dim() and len(output) != len(label):
            raise DataError(
                f"the model returned {list(output.shape)} for a batch of {len(label)} rows with the label "
                f"{field.name!r}: the first extent has to be the rows of the batch."
            )


def _strange(columns: Columns, fields: Fields) -> str:
    for field in fields.all:
        for row in matrix_of(columns.rows, field):
            if row.dtype.kind == "f" and not all(map(math.isfinite, row.tolist())):
                return f"column {field.name!r} holds {row.tolist()}"
    return ""


def _floating_type(model: nn.Module) -> str:
    for parameter in model.parameters():
        if parameter.dtype == torch.float64:
            return "float64"
    return "float32"


def _inputs(
    columns: Columns, model: nn.Module, shapes: Sequence[Sequence[int]] | None
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
    least, most = _positional(model)
    if least <= count <= most and not (least == 1 and count > 1 and most > count):
        return [(group, None) for group in alone]
    if least <= 1 <= most:
        return [(group, None) for group in together]
    raise DataError(
        f"{type(model).__name__}.forward takes {least if least == most else f'{least} to {most}'} inputs, and there "
        f"are {count} feature columns ({', '.join(repr(one.name) for one in columns.features)}): name as many in "
        "feature_cols, or join columns to vectors (pyspark.ml.feature.VectorAssembler)."
    )


def _positional(model: nn.Module) -> tuple[int, float]:
    """The least and the most positional inputs of a model."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 1, math.inf
    named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    least = sum(one.default is one.empty for one in named)
    return least, math.inf if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(named)


def _input_fields(
    columns: Columns, group: list[int], shape: tuple[int, ...] | None, floating: str, *, whole: bool
) -> Field:
    readables = [columns.features[number] for number in group]
    widths = [columns.widths[number] for number in group]
    integers = whole and all(one.dtype == "int64" for one in readables) and len(group) == 1
    if shape is None:
        # A scalar of whole numbers may be an index: [rows]. Numbers to be weighed stand in a matrix.
        shape = () if integers and not readables[0].is_array else (sum(widths),)
    elif math.prod(shape) != sum(widths):
        raise DataError(
            f"input_shapes says {[-1, *shape]} for {', '.join(repr(one.name) for one in readables)}, which has "
            f"{sum(widths)} values a row, not {math.prod(shape)}."
        )
    if any(one.dtype == "float64" for one in readables):
        floating = "float64"  # seconds since 1970: in float32 they would be rounded to minutes
    return _field(readables, group, widths, "int64" if integers else floating, shape)


def _label_fields(columns: Columns, place: int, floating: str) -> list[Field]:
    """The forms in which a label may be wanted, the likeliest first."""
    number = len(columns.features) + place
    column, width = columns.labels[place], columns.widths[len(columns.features) + place]
    shape = (width,) if column.is_array else ()
    floating = "float64" if column.dtype == "float64" else floating
    own = _field([column], [number], [width], "int64" if column.dtype == "int64" else floating, shape)
    other = replace(own, dtype=floating if own.dtype == "int64" else "int64")
    return [own, other] if other.dtype != "int64" or _all_whole(columns, own) else [own]


def _all_whole(columns: Columns, field: Field) -> bool:
    matrix = matrix_of(columns.rows, replace(field, dtype="float64"))
    return bool((matrix == matrix.round()).all())


def _field(
    readables: Sequence[Readable], numbers: Sequence[int], widths: Sequence[int], dtype: str, shape: tuple[int, ...]
) -> Field:
    return Field(
        tuple(one.name for one in readables), tuple(f"c{number}" for number in numbers), tuple(widths), dtype, shape
    )


def _shown(fields: Fields) -> str:
    """Inputs and labels in words."""
    inputs = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.inputs)
    labels = ", ".join(f"{field.name}: {field.dtype}{[-1, *field.shape]}" for field in fields.labels)
    return f"The model was given {inputs}; the loss the labels {labels}. input_shapes and label_shapes change shapes."
