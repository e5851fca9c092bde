"""Computes the loss of a batch of a PyTorch model, with labels in the right shapes and means that are right over ranks.

A loss is a mean over rows, so that the ranks' losses, each weighted by its rows, make the joint batch's. If a loss
divides by another number (of the labels that it does not leave out, or the sum of its classes' weights), the ranks
exchange that number.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.estimators.metric_names import name_metrics
from spark_estimator.estimators.rows.shapes import make_class_error
from spark_estimator.estimators.torch.steps.recipe import PLAIN, StepRecipe

Tensors = list[torch.Tensor]
#: Adds up lists of numbers over all ranks, element by element.
Total = Callable[[list[float]], list[float]]
_OF_CLASSES: dict[Any, type[nn.Module]] = {
    nn.functional.cross_entropy: nn.CrossEntropyLoss,
    nn.functional.nll_loss: nn.NLLLoss,
}
#: The types of ``mixed_precision``.
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The class that torch's losses ignore by default.
_LEFT_OUT = -100


@dataclass(frozen=True)
class TorchParts:
    """What `TrainSpec.framework` is for PyTorch.

    Attributes:
        model, optimizer: the optimizer holds the model's own parameters; both are sent in one pickle, which keeps that.
        losses: [labels] functions of (output, label).
        loss_weights: [labels].
        scheduler: of the learning rate, moved after each epoch; None: it stays.
        metrics: [labels] functions of (output, label), each.
        compression: of gradients; None: none.
        label_shapes: [labels] of a batch, with -1 for its rows; None: as the output, where that holds as many values.
        precision: of `PRECISIONS`: the model's forward pass runs under autocast; None: in its own types.
        callbacks: see `estimators.torch.callbacks`.
        minibatch: the user's own step, as Horovod calls it; None: this package's.
        labels: their columns' names, for messages.
        leaving_out: the numbers of those labels in which some rows have the class that their loss leaves out, so
            that it divides by the others.
        metric_names: [labels][metrics] of `metrics`; empty: as `name_metrics` makes them.
        rate_is_joint: the learning rate is that of a step of all ranks; False: of one process, and it is multiplied.
        settings: what else distinguishes the training from another.
        returns_optimizer: the driver gets the optimizer's state, too.
        sync: "allreduce", or "local_sgd" or "diloco": what the ranks exchange.
        inner_steps: between two exchanges of the latter.
        nothing_to_learn: the error where the loss leaves out all labels; empty: a general one.
        recipe: how steps are made.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: Sequence[Callable[..., Any]]
    loss_weights: Sequence[float]
    metrics: Sequence[Sequence[Callable[..., Any]]]
    scheduler: Any = None
    compression: Any = None
    label_shapes: Sequence[Sequence[int]] | None = None
    precision: str | None = None
    callbacks: Sequence[Any] = ()
    minibatch: Callable[..., Any] | None = None
    labels: Sequence[str] = ()
    leaving_out: frozenset[int] = frozenset()
    metric_names: Sequence[Sequence[str]] = ()
    rate_is_joint: bool = False
    settings: Sequence[str] = ()
    returns_optimizer: bool = True
    sync: str = "allreduce"
    inner_steps: int = 32
    nothing_to_learn: str = ""
    recipe: StepRecipe = PLAIN

    @property
    def steps_locally(self) -> bool:
        """Return whether each rank steps by its own gradients."""
        return self.sync != "allreduce"

    def __post_init__(self) -> None:
        if not self.metric_names:
            object.__setattr__(self, "metric_names", name_metrics(self.metrics, self.labels))


@dataclass(frozen=True)
class LabelLoss:
    """The loss of a batch for one label.

    Attributes:
        share: by which it counts in the whole loss.
        value: the mean over the rows; or the sum, where `divisor` is not None.
        divisor: what a mean divides the sum by, of this rank's rows; None: their number.
    """

    share: float
    value: torch.Tensor
    divisor: float | None = None


@dataclass(frozen=True)
class JointLoss:
    """The loss of a batch.

    Attributes:
        value: to differentiate.
        labels: [labels] of what it is made; empty: that is not known.
    """

    value: torch.Tensor
    labels: Sequence[LabelLoss] = ()


def compute_loss(
    parts: TorchParts,
    model: nn.Module,
    inputs: Tensors,
    labels: Tensors,
    weights: torch.Tensor | None,
    rows: int,
    total: Total = list,
) -> tuple[JointLoss, Tensors, Tensors]:
    """Return the loss of a batch, the model's outputs, and the labels in their shapes.

    Args:
        model: may be a copy of that of `parts`.
        rows: how many of the batch's rows count: all, or none.
        total: a collective, where there are several ranks.

    Raises:
        DataError: the model does not return a tensor for each label.
    """
    dtype = PRECISIONS.get(parts.precision or "")
    with torch.autocast(inputs[0].device.type, dtype, enabled=dtype is not None):
        try:
            outputs = call_model(model, inputs)
        except ValueError as error:
            if len(inputs[0]) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise DataError(
                "a rank's batch has a single row, with which a batch normalization can do nothing: take fewer "
                f"processes (num_proc), a larger batch_size, or more rows. ({error})"
            ) from error
    if parts.precision is not None:  # losses and metrics are computed in full
        outputs = [output.float() if output.dtype in PRECISIONS.values() else output for output in outputs]
    labels = reshape_labels(parts, outputs, labels)
    return compute_joint_loss(parts, outputs, labels, weights, rows, total), outputs, labels


def _check_classes(parts: TorchParts, outputs: Tensors, labels: Tensors, error: Exception) -> None:
    """Raise a clearer error than "Target 7 is out of bounds", if that is the cause."""
    losses: Sequence[Any] = parts.losses
    for loss, output, label, name in zip(losses, outputs, labels, parts.labels, strict=False):
        if not _is_of_classes(loss) or output.dim() < 2 or label.is_floating_point():
            continue
        classes = output.shape[1]
        wrong = label[((label < 0) | (label >= classes)) & (label != loss.ignore_index)]
        if wrong.numel():
            raise make_class_error(name, int(wrong.reshape(-1)[0]), classes) from error


def reshape_labels(parts: TorchParts, outputs: Tensors, labels: Tensors) -> Tensors:
    """Return [labels] in the shapes in which their losses want them.

    Raises:
        DataError: the model has another number of outputs than there are labels.
    """
    if len(outputs) != len(labels):
        raise DataError(
            f"the model returned {len(outputs)} tensors for {len(labels)} label columns: one each is needed."
        )
    return [
        _reshape(label, output, parts.label_shapes[number] if parts.label_shapes else None)
        for number, (label, output) in enumerate(zip(labels, outputs, strict=True))
    ]


def compute_joint_loss(
    parts: TorchParts, outputs: Tensors, labels: Tensors, weights: torch.Tensor | None, rows: int, total: Total
) -> JointLoss:
    """Return the weighted sum of the losses, so that over ranks the mean by rows is the loss of all rows together.

    Raises:
        DataError: a label is no class of the model's.
    """
    try:
        return _compute_joint_loss(parts, outputs, labels, weights, rows, total)
    except IndexError as error:
        _check_classes(parts, outputs, labels, error)
        raise


def _compute_joint_loss(
    parts: TorchParts, outputs: Tensors, labels: Tensors, weights: torch.Tensor | None, rows: int, total: Total
) -> JointLoss:
    by_class = find_divisors(parts, labels, weights, rows)
    scales: dict[int, float] = {}
    if by_class:
        *sums, all_rows = total([*by_class.values(), float(rows)])
        # A batch of nothing but classes without weight has no loss.
        scales = {
            number: all_rows / (max(rows, 1) * sum_) if sum_ else 0.0
            for number, sum_ in zip(by_class, sums, strict=True)
        }
    loss_sum = torch.zeros((), device=outputs[0].device)
    of_labels = []
    terms = zip(parts.losses, parts.loss_weights, outputs, labels, strict=True)
    for number, (loss, share, output, label) in enumerate(terms):
        if number in scales:
            sum_of_rows = _call_reduced(loss, "sum", output, label)
            value = sum_of_rows * scales[number]
            of_labels.append(LabelLoss(share, sum_of_rows.detach(), by_class[number]))
        elif weights is None:
            value = loss(output, label)
            of_labels.append(LabelLoss(share, value.detach()))
        else:
            by_row = compute_by_row(loss, output, label, checks=rows > 0)
            value = (by_row * weights.reshape(-1)).mean()
            of_labels.append(LabelLoss(share, value.detach()))
        loss_sum = loss_sum + share * value
    return JointLoss(loss_sum, of_labels)


def find_divisors(parts: TorchParts, labels: Tensors, weights: torch.Tensor | None, rows: int) -> dict[int, float]:
    """Return {label's number: what its loss divides by} of a rank's rows, for the losses that do not divide by rows.

    Args:
        labels: in any shape.
        rows: how many of the rows count: all, or none.
    """
    return {
        number: _sum_class_weights(loss, label) if rows else 0.0
        for number, (loss, label) in enumerate(zip(parts.losses, labels, strict=True))
        if weights is None and (divides_by_class(loss) or number in parts.leaving_out) and not label.is_floating_point()
    }


def to_module(loss: Any) -> Any:
    """Return the loss; as a module if it is a function, or a `functools.partial` of one, whose mean is over classes."""
    if inspect.isfunction(loss) and loss in _OF_CLASSES:
        return _OF_CLASSES[loss]()
    if isinstance(loss, functools.partial) and not loss.args and loss.func in _OF_CLASSES:
        keywords = {name: value for name, value in loss.keywords.items() if name not in ("size_average", "reduce")}
        return _OF_CLASSES[loss.func](**keywords)
    return loss


def is_from_torch(loss: Any) -> bool:
    """Return whether torch.nn alone computes the loss: no ``forward``, ``__call__`` or hook of others is called."""
    if not isinstance(loss, nn.Module) or "forward" in vars(loss) or loss._forward_hooks or loss._forward_pre_hooks:
        return False
    kind = next(kind for kind in type(loss).__mro__ if "forward" in vars(kind))
    return kind.__module__ == nn.modules.loss.__name__ and type(loss).__call__ is nn.Module.__call__


def get_reduction(loss: Any) -> Any:
    """Return how a loss of torch.nn, or a `functools.partial` of its functions, makes one number of its rows'."""
    if isinstance(loss, nn.modules.loss._Loss) and not is_from_torch(loss):
        return "mean"  # its reduction is that of a number inside of it
    keywords = loss.keywords if isinstance(loss, functools.partial) else {}
    return keywords.get("reduction", getattr(loss, "reduction", "mean"))


def check_reduction(loss: Any) -> None:
    """Raise ValueError for a loss that is no mean.

    Raises:
        ValueError: the text has its reduction.
    """
    reduction = get_reduction(loss)
    if reduction not in ("mean", "batchmean"):
        raise ValueError(
            f"{loss!r} has reduction={reduction!r}; a loss has to be a mean over the rows of a batch, as the ranks' "
            "batches differ in size: leave reduction='mean'."
        )


def divides_by_class(loss: Any) -> bool:
    """Return whether the mean of a loss is over its classes' weights and not over rows, for all labels."""
    return _is_of_classes(loss) and (loss.weight is not None or loss.ignore_index != _LEFT_OUT)


def leaves_out(loss: Any, pieces: Iterable[tuple[Array, Array | None]]) -> bool:
    """Return whether some labels that count are of the class that a loss leaves out.

    Args:
        pieces: labels [rows, width] and their rows' weights [rows, 1]; None: there are no weights.
    """
    if not _is_of_classes(loss):
        return False
    return any(
        bool(((labels == loss.ignore_index) & (True if weights is None else weights != 0)).any())
        for labels, weights in pieces
    )


def counts_some(loss: Any, pieces: Iterable[Array]) -> bool:
    """Return whether a label, of [rows, width] in each piece, is not of the class that a loss leaves out."""
    return not _is_of_classes(loss) or any(bool((labels != loss.ignore_index).any()) for labels in pieces)


def _is_of_classes(loss: Any) -> bool:
    return isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and is_from_torch(loss)


def _sum_class_weights(loss: Any, label: torch.Tensor) -> float:
    """Return the divisor of the loss of a batch."""
    counted = label != loss.ignore_index
    if loss.weight is None:
        return float(counted.sum())
    return float(loss.weight.to(label.device)[label[counted]].sum())


def call_model(model: nn.Module, inputs: Tensors) -> Tensors:
    """Return the model's outputs as a list.

    Raises:
        DataError: they are not tensors.
    """
    result = model(*inputs)
    if isinstance(result, Mapping):
        raise DataError(
            f"the model returned a dict of {', '.join(map(repr, result))}: return a tensor for each label column, in "
            "their order, as a tuple."
        )
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise DataError(f"the model returned {output!r} of type {type(output).__name__}, which is no tensor.")
    return outputs


def compute_by_row(loss: Any, output: torch.Tensor, label: torch.Tensor, *, checks: bool = True) -> torch.Tensor:
    """Return [rows] the loss of each row, of which the loss of a batch is the mean.

    That of functions and classes of others is checked with every batch: it can depend on the labels (a mean over
    classes) and on the size (a root of the mean is the mean of one row's).

    Args:
        checks: False: the batch has no row that counts.

    Raises:
        DataError: the loss is not the mean of what it returns with reduction="none", or has no `reduction`.
    """
    values = drop_reduction(loss)(output, label)
    is_by_row = values.numel() % len(label) == 0
    by_row = _reduce_to_rows(loss, values, len(label)) if is_by_row else values
    if checks and not is_from_torch(loss):
        with torch.no_grad():
            mean = loss(output, label)
        if not is_by_row or not torch.allclose(by_row.detach().mean(), mean, rtol=1e-3, equal_nan=True):
            raise DataError(
                f"sample_weight_col needs the loss of each row, but {loss!r} is {mean.item():.6g} for {len(label)} "
                f"rows, and with reduction='none' it returns the shape {list(values.shape)} with the mean "
                f"{values.mean().item():.6g}. Leave sample_weight_col out, or return the loss of each row where "
                "`reduction` (of a class: self.reduction) is 'none', and their mean where it is 'mean'."
            )
    return by_row


def _reduce_to_rows(loss: Any, values: torch.Tensor, rows: int) -> torch.Tensor:
    """Return [rows] the loss of each row, from a loss's values with reduction="none"."""
    values = values.reshape(rows, -1)
    return values.sum(1) if get_reduction(loss) == "batchmean" else values.mean(1)


def drop_reduction(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same loss without the mean over the rows.

    Raises:
        DataError: the loss has no keyword `reduction`.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        return functools.partial(_call_reduced, loss, "none")
    try:
        has_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        has_reduction = False
    if not has_reduction:
        raise DataError(
            f"sample_weight_col needs the loss of each row, but {loss!r} has no reduction that could be 'none': use a "
            "loss of torch.nn, or a function with the keyword reduction."
        )
    return functools.partial(loss, reduction="none")


def _call_reduced(loss: Any, reduction: str, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return a module's value with another reduction, which may be that of a module inside; then it is as before."""
    before = loss.reduction
    loss.reduction = reduction
    try:
        value: torch.Tensor = loss(output, label)
        return value
    finally:
        loss.reduction = before


def _reshape(label: torch.Tensor, output: torch.Tensor, shape: Sequence[int] | None) -> torch.Tensor:
    if shape is not None:
        return label.reshape(len(label), *shape[1:])
    return label.reshape(output.shape) if label.numel() == output.numel() else label
