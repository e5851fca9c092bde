"""Tries a PyTorch model on the first rows, on the driver: runs one batch forward and backward through a copy."""

from __future__ import annotations

import copy
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow
import torch
from torch import nn

from spark_estimator.checkpoint.random_state import get_random_state, set_random_state
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.shapes import RESHAPE, Fields, LabelError, describe_fields, find_not_finite
from spark_estimator.estimators.torch.epoch_means import counts_rows, update_metric
from spark_estimator.estimators.torch.losses import (
    Tensors,
    TorchParts,
    call_model,
    compute_by_row,
    compute_loss,
    is_from_torch,
    reshape_labels,
)
from spark_estimator.estimators.torch.trainer import to_tensor


class ModuleTrial:
    """The part of `shapes.Trial` that a module's class decides."""

    by_name = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.floating = get_floating_type(model)
        self.takes = f"{type(model).__name__}.forward"

    def count_positional(self) -> tuple[int, float]:
        """See `shapes.Trial.count_positional`."""
        return count_inputs(self._model)


class TorchTrial(ModuleTrial):
    """See `shapes.Trial`.

    Args:
        monitors: numbers of the history that something is decided by, as `find_number` names them.
        counts: returns whether a metric is computed over all rows; others are of a batch.
    """

    def __init__(
        self, parts: TorchParts, monitors: Iterable[str | None] = (), counts: Callable[[Any], bool] = counts_rows
    ) -> None:
        super().__init__(parts.model)
        self._parts = parts
        self._counts = counts
        self._monitors = {name.partition(".")[2] for name in monitors if name}

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        """See `shapes.Trial.run`."""
        if self._parts.recipe.channels_last and not any(len(field.shape) == 3 for field in fields.inputs):
            raise DataError(f"channels_last=True needs images, of three dimensions. {describe_fields(fields)}{RESHAPE}")
        tensors = make_first_tensors(rows, fields)
        count = len(fields.inputs)
        labels = tensors[count : count + len(fields.labels)]
        weight = tensors[-1] if fields.weight else None
        model = _copy_model(self._parts.model).cpu()
        state = get_random_state()
        try:
            model.train()
            if rows.num_rows == 1:
                model.eval()  # batch norm raises an error for a single row
            try:
                joint, outputs, targets = compute_loss(
                    self._parts, model, tensors[:count], labels, weight, rows.num_rows
                )
                loss = joint.value
            except DataError:
                raise
            except Exception as error:
                if isinstance(error, RuntimeError):
                    _check_types(model, error)
                    _check_width(model, fields, error)
                failing = _find_failing_labels(self._parts, model, tensors[:count], labels)
                if failing:
                    raise LabelError(failing) from error
                raise
            if loss.numel() != 1:
                raise DataError(
                    f"the loss has the shape {list(loss.shape)}; it has to be one number (reduction='mean')."
                )
            _check_outputs(self._parts, outputs, targets, fields)
            loss.backward()
            parts = self._parts
            for group, names, one_loss, output, label in zip(
                parts.metrics, parts.metric_names, parts.losses, outputs, targets, strict=True
            ):
                for name, metric in zip(names, group, strict=True):
                    counted = self._counts(metric)
                    is_one = not counted or name in self._monitors
                    _try_metric(metric, output.detach(), label, one_loss if counted else None, is_one=is_one)
        finally:
            set_random_state(state)
        if not (math.isfinite(loss.item()) or self._parts.recipe.skips):
            raise DataError(
                f"the loss of the first {rows.num_rows} rows is {loss.item()}: "
                f"{find_not_finite(rows, fields) or 'the model computes it so from finite numbers'}."
            )
        widths = tuple(output.numel() // len(output) for output in outputs)
        if rows.num_rows > 2:
            model.eval()
            with torch.no_grad():
                fewer = call_model(model, [tensor[:-1] for tensor in tensors[:count]])
            for output, width, field in zip(fewer, widths, fields.labels, strict=True):
                if output.numel() != width * (rows.num_rows - 1):
                    raise DataError(
                        f"the model's output for {field.name!r} has {width} values a row for {rows.num_rows} rows, and "
                        "another number for one row less: it mixes rows, as [rows] and [rows, 1] do when they are "
                        f"added. {describe_fields(fields)}{RESHAPE}"
                    )
        return widths


def _find_failing_labels(parts: TorchParts, model: nn.Module, inputs: Tensors, labels: Tensors) -> dict[int, Exception]:
    """Return the errors of all losses that raise, by the number of the label; {}: the model does, or no loss."""
    try:
        outputs = call_model(model, inputs)
    except Exception:
        return {}
    failing: dict[int, Exception] = {}
    for number, (loss, output, label) in enumerate(
        zip(parts.losses, outputs, reshape_labels(parts, outputs, labels), strict=True)
    ):
        try:
            loss(output, label)
        except Exception as error:
            failing[number] = error
    return failing


def _check_types(model: nn.Module, error: Exception) -> None:
    """Raise a clearer error than the model's if its parameters are of another type than its inputs."""
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            raise DataError(
                f"the model's {name} is of {str(parameter.dtype).removeprefix('torch.')}, and rows come as float32: "
                "leave the model in float32 and say mixed_precision='bf16', or let forward() convert its inputs. "
                f"({error})"
            ) from error


def _check_width(model: nn.Module, fields: Fields, error: Exception) -> None:
    """Raise a clearer error than PyTorch's if the first linear layer takes another number of values."""
    match = re.search(r"\(\d+x(\d+) and (\d+)x\d+\)", str(error))
    first = next(((name, item) for name, item in model.named_modules() if isinstance(item, nn.Linear)), None)
    if match is None or first is None or len(fields.inputs) != 1:
        return
    (name, layer), width = first, fields.inputs[0].width
    if (int(match[1]), int(match[2])) == (width, layer.in_features):
        columns = ", ".join(map(repr, fields.inputs[0].names))
        raise DataError(
            f"the features {columns} have {width} values a row, and the model's first layer"
            f"{f', {name},' if name else ''} takes {layer.in_features}. Change its in_features, or feature_cols. "
            f"({error})"
        ) from error


def _copy_model(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                try:
                    copy.deepcopy(value if name not in ("_modules", "_parameters", "_buffers") else None)
                except Exception:
                    at = ".".join(filter(None, (path, name)))
                    raise DataError(
                        f"the model cannot be copied, as the processes' models are: {type(error).__name__}: {error}. "
                        f"It is its attribute {at}, {value!r}: make that where it is used, or leave it out of the "
                        "model's state (__getstate__)."
                    ) from error
        raise


def _try_metric(metric: Any, output: torch.Tensor, label: torch.Tensor, loss: Any, *, is_one: bool) -> None:
    """Compute a metric of the first rows.

    Args:
        loss: of the label, if the metric is an object that counts rows; None: it is of a batch.
        is_one: its value has to be one number.

    Raises:
        DataError: it cannot be computed, or its value is not of numbers.
    """
    name = getattr(metric, "__name__", type(metric).__name__)
    try:
        metric = copy.deepcopy(metric) if counts_rows(metric) else metric
        if loss is None:
            value = metric(output, label)
        else:
            with warnings.catch_warnings():  # the first rows may be of one class
                warnings.simplefilter("ignore")
                for _ in range(2):  # one row may be too few
                    update_metric(metric, output, label, loss)
                value = metric.compute()
    except Exception as error:
        raise DataError(
            f"the metric {name} raised {type(error).__name__}: {error}. It was called with the model's output "
            f"{list(output.shape)} and the labels {list(label.shape)} of {label.dtype}."
        ) from error
    try:
        numbers = torch.as_tensor(value)
        if is_one:
            float(numbers)
    except (RuntimeError, TypeError, ValueError) as error:
        wanted = "one number" if is_one else "one tensor of numbers, as the history has it"
        raise DataError(f"the metric {name} returned {value!r:.60}, and not {wanted}.") from error


def make_first_tensors(rows: pyarrow.RecordBatch, fields: Fields) -> Tensors:
    """Return [fields] the first rows, as a training would get them."""
    return [to_tensor(matrix.copy(), field) for matrix, field in zip(fields.matrices(rows), fields.all, strict=True)]


def _check_outputs(
    parts: TorchParts, outputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor], fields: Fields
) -> None:
    for loss, output, label, field in zip(parts.losses, outputs, labels, fields.labels, strict=True):
        if isinstance(loss, nn.CrossEntropyLoss) and is_from_torch(loss) and output.numel() == len(output):
            raise DataError(
                "CrossEntropyLoss compares several outputs, one for each class; the model's output for "
                f"{field.name!r} has one, so that the loss would always be 0. Give it an output for each class, or use "
                "BCEWithLogitsLoss."
            )
        if output.dim() and len(output) != len(label):
            raise DataError(
                f"the model returned {list(output.shape)} for a batch of {len(label)} rows with the label "
                f"{field.name!r}: the first dimension must be the batch."
            )
        if fields.weight and not is_from_torch(loss):
            compute_by_row(loss, output.detach(), label)


def count_inputs(model: nn.Module) -> tuple[int, float]:
    """Return the least and the most positional arguments of ``forward``."""
    try:
        # torch.compile's wrapper takes any arguments.
        forward = getattr(model, "_orig_mod", model).forward
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return 1, math.inf
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    least = sum(item.default is item.empty for item in named)
    return least, math.inf if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) else len(
        named
    )


def get_floating_type(model: nn.Module) -> str:
    """Return the type of the model's numbers: "float32" or "float64"."""
    for parameter in model.parameters():
        if parameter.dtype == torch.float64:
            return "float64"
    return "float32"
