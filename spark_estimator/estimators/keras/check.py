"""Tries a Keras model on the first rows, on the driver: a copy of it takes one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
import pyarrow

from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.arrays import (
    get_input_shapes,
    to_arrays,
    to_inputs,
    to_labels,
    to_outputs,
    to_tensors,
)
from spark_estimator.estimators.keras.objects import Recipe, get_values, keep_rng_state, load_dumped, unpack
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.estimators.rows.shapes import (
    Fields,
    MetricError,
    describe_fields,
    find_not_finite,
    make_class_error,
)
from spark_estimator.keras.importing import backend, is_keras_2, keras_of
from spark_estimator.keras.optimizers import list_variables


class KerasTrial:
    """See `shapes.Trial`.

    Args:
        model: the user's; it is only inspected.
        custom: the user's classes and functions.

    Attributes:
        state_bytes: of the model's and its optimizer's variables after a step; 0 before `run`.
    """

    by_name = False

    def __init__(self, parts: KerasParts, model: Any, custom: Mapping[str, Any]) -> None:
        self._parts = parts
        self._model = model
        self._custom = custom
        self.floating = "float64" if keras_of(model).backend.floatx() == "float64" else "float32"
        self.takes = f"the model {model.name!r}"
        self.state_bytes = 0

    def count_positional(self) -> tuple[int, float]:
        """See `shapes.Trial.count_positional`."""
        shapes = get_input_shapes(self._model)
        if shapes is not None:
            return len(shapes), len(shapes)
        return 1, 1  # a subclassed model is called with one argument; input_shapes shows that it is a list

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        """See `shapes.Trial.run`."""
        matrices = [matrix.copy() for matrix in fields.matrices(rows)]
        arrays = to_arrays(matrices, fields.all)
        count, labels = len(fields.inputs), len(fields.labels)
        weight = arrays[-1].reshape(-1) if fields.weight else None
        with keep_rng_state():
            model = load_dumped(self._parts.model, self._custom)
            inputs = to_inputs(model, arrays[:count], fields.inputs)
            returned = model(inputs, training=False)
            outputs = to_outputs(returned)
            if len(outputs) != labels:
                raise DataError(
                    f"{self.takes} returns {len(outputs)} outputs, and there are {labels} label columns "
                    f"({', '.join(repr(field.name) for field in fields.labels)}): one for each output."
                )
            for output, field in zip(outputs, fields.labels, strict=True):
                if not len(output.shape) or int(output.shape[0]) != rows.num_rows:
                    raise DataError(
                        f"the model returned {list(output.shape)} for a batch of {rows.num_rows} rows with the label "
                        f"{field.name!r}: the first dimension must be the batch."
                    )
            targets = to_labels(returned, arrays[count : count + labels], self._parts.label_shapes)
            inputs, targets, weight = to_tensors(model, (inputs, targets, weight))
            recipe: Recipe = unpack(self._parts.recipe, self._custom)
            _check_classes(recipe.loss, outputs, arrays[count : count + labels], fields)
            recipe.compile(model)
            _check_metrics(model, {"x": inputs, "y": targets, "y_pred": returned, "sample_weight": weight})
            if backend(model) != "jax":
                model.run_eagerly = True  # a step of a graph would have to be made first
            logs = model.train_on_batch(inputs, targets, sample_weight=weight, return_dict=True)
            variables = [*model.weights, *list_variables(model.optimizer)]
            self.state_bytes = sum(get_values([variable])[0].nbytes for variable in variables)
        loss = float(numpy.asarray(logs["loss"])) if "loss" in logs else 0.0
        if not math.isfinite(loss):
            raise DataError(
                f"the loss of the first {rows.num_rows} rows is {loss}: "
                f"{find_not_finite(rows, fields) or 'the model computes it so from finite numbers'}. "
                f"{describe_fields(fields)}"
            )
        return tuple(int(math.prod(int(extent) for extent in output.shape[1:])) for output in outputs)


def _check_metrics(model: Any, batch: Mapping[str, Any]) -> None:
    """Raise MetricError if the losses can be computed, and the metrics cannot."""
    if is_keras_2(model) or getattr(model, "_compile_metrics", None) is None:
        return
    model.compute_loss(**batch, training=False)
    try:
        model.compute_metrics(**batch)
    except Exception as error:
        raise MetricError(
            f"a metric failed on a batch of the first rows, on the driver, with {type(error).__name__}: "
            f"{str(error).rstrip('.')}. Metrics get labels and outputs as tensors of Keras' backend, {backend(model)}."
        ) from error


def _check_classes(loss: Any, outputs: list[Any], labels: list[Any], fields: Fields) -> None:
    """Raise for class numbers that have no output: some backends take them in silence, others name no column."""
    losses = loss if isinstance(loss, (list, tuple)) else [loss] * len(outputs)
    for loss, output, label, field in zip(losses, outputs, labels, fields.labels, strict=False):
        name = loss if isinstance(loss, str) else type(loss).__name__
        if name.replace("_", "").lower() != "sparsecategoricalcrossentropy":
            continue
        classes = int(output.shape[-1])
        wrong = label[(label < 0) | (label >= classes)]
        if wrong.size:
            raise make_class_error(field.name, int(wrong.reshape(-1)[0]), classes)
