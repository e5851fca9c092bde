"""Brings arrays of rows into the form that a Keras model takes: the shapes and structure of its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spark_estimator.data.fields import Array, Field
from spark_estimator.errors import DataError
from spark_estimator.keras.importing import is_keras_2, keras_of

Shape = tuple[int | None, ...]


def get_input_shapes(model: Any) -> list[Shape] | None:
    """Return [inputs] their shapes without the rows; None if the model has no known inputs."""
    try:
        inputs = model.inputs
    except (AttributeError, ValueError):  # a Sequential that is not built
        return None
    return [tuple(tensor.shape[1:]) for tensor in inputs] if inputs else None


def to_arrays(matrices: Sequence[Array], fields: Sequence[Field]) -> list[Array]:
    """Return [fields] each [rows, *field.shape], of matrices [rows, width]."""
    result = []
    for matrix, field in zip(matrices, fields, strict=True):
        array = matrix.reshape(len(matrix), *field.shape)
        result.append(array.astype(field.dtype) if field.stored else array)
    return result


def to_inputs(model: Any, arrays: Sequence[Array], fields: Sequence[Field]) -> Any:
    """Return the model's input: one array, a list, or a dict by the names of its inputs.

    An input whose shape is known gets its rows in that shape. If columns have the names of a dict's inputs, they
    are matched by name, else in order.

    Raises:
        DataError: a column has not as many values a row as its input.
    """
    struct = getattr(model, "_inputs_struct", None)
    if struct is None:  # a model of Keras 2
        struct = getattr(model, "_nested_inputs", None)
    keys = list(struct) if isinstance(struct, dict) else None
    order = list(range(len(arrays)))
    if keys is not None:
        by_name = {field.name: position for position, field in enumerate(fields)}
        if set(keys) == set(by_name):
            order = [by_name[key] for key in keys]
    shapes = get_input_shapes(model)
    if keys is not None and struct is not None:
        shapes = [tuple(struct[key].shape[1:]) for key in keys]
    if shapes is None or len(shapes) != len(arrays):
        shapes = [(None,)] * len(arrays)
    shaped = [
        _reshape(arrays[position], shape, fields[position], number)
        for number, (position, shape) in enumerate(zip(order, shapes, strict=True))
    ]
    if keys is not None:
        return dict(zip(keys, shaped, strict=True))
    return shaped[0] if len(shaped) == 1 else shaped


def _reshape(array: Array, shape: Shape, field: Field, number: int) -> Array:
    if None in shape:
        return array
    if math.prod(extent or 0 for extent in shape) != field.width:
        raise DataError(
            f"{field.name}: {field.width} values a row, and input {number + 1} of the model takes the shape "
            f"{[-1, *shape]}, which has {math.prod(extent or 0 for extent in shape)}: choose other columns in "
            "feature_cols, or make the model with keras.Input of their shape."
        )
    return array.reshape(len(array), *(extent or 0 for extent in shape))


def to_tensors(model: Any, arrays: Any) -> Any:
    """Return arrays of any structure as tensors of the model's backend, which losses and metrics get in Keras' own
    ``fit``.

    Args:
        arrays: or None.
    """
    if is_keras_2(model):  # which makes them itself, also of a single batch
        return arrays
    keras = keras_of(model)
    return keras.tree.map_structure(lambda array: None if array is None else keras.ops.convert_to_tensor(array), arrays)


def to_outputs(returned: Any) -> list[Any]:
    """Return [outputs] what a model has returned, in Keras' order."""
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def to_labels(returned: Any, arrays: Sequence[Array], label_shapes: Sequence[Sequence[int]] | None) -> Any:
    """Return labels in the structure of what the model returns for them, and in its shapes if they have as many
    values.

    Args:
        returned: by the model, for as many rows or others.
        label_shapes: the estimator's parameter.
    """
    outputs = to_outputs(returned)
    shaped = []
    for number, (array, output) in enumerate(zip(arrays, outputs, strict=True)):
        extents = output.shape[1:] if label_shapes is None else label_shapes[number][1:]
        shape = tuple(int(extent) for extent in extents)
        rows = len(array)
        fits = label_shapes is not None or array.size == rows * math.prod(shape)
        shaped.append(array.reshape(rows, *shape) if fits else array)
    if isinstance(returned, dict):
        return dict(zip(returned, shaped, strict=True))
    if isinstance(returned, (list, tuple)):
        return shaped
    return shaped[0]
