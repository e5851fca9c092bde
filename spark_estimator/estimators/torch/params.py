"""The parameters of `TorchEstimator` and `TorchModel`; Lightning's estimator has some of them, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_estimator.estimators import checks, params
from spark_estimator.estimators.params import Row

_LOSS = "Callable[..., Any]"
#: The types of shared parameters whose values are PyTorch's.
TYPES: dict[str, tuple[str, str]] = {
    "model": ("nn.Module | None", ""),
    "optimizer": ("torch.optim.Optimizer | None", ""),
    "loss": (f"{_LOSS} | Sequence[{_LOSS}] | None", f"list[{_LOSS}]"),
    "metrics": (
        f"{_LOSS} | Mapping[str, {_LOSS}] | Sequence[{_LOSS} | Sequence[{_LOSS}] | Mapping[str, {_LOSS}]] | None",
        "list[Any]",
    ),
}


def set_types(rows: Sequence[Row], types: Mapping[str, tuple[str, str]]) -> tuple[Row, ...]:
    """Return the rows with a framework's types: (of the setter, of the getter) by name; and losses that are checked."""
    return tuple(
        replace(
            row,
            type=types[row.name][0],
            returns=types[row.name][1],
            check=_check_losses if row.name == "loss" else row.check,
        )
        if row.name in types
        else row
        for row in rows
    )


def _check_losses(name: str, value: Any) -> list[Any]:
    """Return a list of losses. One that is no mean is refused at once: in a Pipeline, `fit` is called after other
    stages.
    """
    from spark_estimator.estimators.torch.losses import check_reduction  # not before there is a loss

    result = checks.check_list(name, value)
    for loss in result:
        check_reduction(loss)
    return result


LOSS_CONSTRUCTORS = Row(
    "loss_constructors",
    None,
    checks.check_list,
    "functions that create the losses, instead of loss; Horovod's get the keyword model",
    f"{_LOSS} | Sequence[{_LOSS}] | None",
    f"list[{_LOSS}] | None",
)

#: What the processes exchange; of the estimators for PyTorch and Lightning.
LOCAL_STEPS = (
    Row(
        "sync",
        "allreduce",
        checks.check_one_of("allreduce", "local_sgd", "diloco"),
        "what the processes exchange: 'allreduce': the gradients of each step; 'local_sgd' and 'diloco': parameters, "
        "every inner_steps steps, as spark_estimator.torch.LocalSGD and DiLoCo do, with the learning rate of one "
        "process",
        "str",
    ),
    Row(
        "inner_steps",
        32,
        checks.check_int(1),
        "with sync='local_sgd' or 'diloco': the number of steps between two exchanges",
        "int",
    ),
)

ESTIMATOR = (
    *set_types(params.SHARED, TYPES),
    *params.PREDICTING,
    *params.INFERENCE,
    params.LEARNING_RATE,
    Row(
        "lr_scheduler",
        None,
        checks.accept,
        "a scheduler of the optimizer, stepped after each epoch and not after each batch: total_steps and T_max are "
        "numbers of epochs; None: none",
        "LRScheduler | None",
    ),
    LOSS_CONSTRUCTORS,
    Row(
        "callbacks",
        [],
        checks.check_list,
        "objects with the methods of spark_estimator.estimators.torch.callbacks.Callback, called on every rank",
        "Any",
        "list[Any]",
    ),
    Row(
        "train_minibatch_fn",
        None,
        checks.accept,
        "a custom training step: (model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights) -> "
        "(outputs, loss); None: the built-in step",
        f"{_LOSS} | None",
    ),
    *LOCAL_STEPS,
    params.DATA_MODULE,
    Row(
        "mixed_precision",
        None,
        checks.check_precision,
        "'bf16': run forward passes under autocast; None: full precision",
        "str | None",
    ),
)

MODEL = (
    params.HISTORY,
    *params.MODEL,
    *params.INFERENCE,
    Row("optimizer", None, checks.accept, "an optimizer of the model's parameters", saved=False),
    Row(
        "input_shapes",
        None,
        checks.check_shapes,
        "the shapes of the inputs, each starting with -1 for the batch",
        "Sequence[Sequence[int]] | None",
        "list[list[int]] | None",
    ),
    Row("loss", None, checks.accept, "the losses of the training", saved=False),
    Row("loss_constructors", None, checks.accept, "functions that create the losses of the training", saved=False),
)
