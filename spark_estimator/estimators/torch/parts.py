"""Checks those parameters of a `TorchEstimator` that are PyTorch's, and puts together what the ranks train with."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.checks import check_labels, describe_value
from spark_estimator.estimators.metric_names import group_metrics
from spark_estimator.estimators.torch.callbacks import check_callbacks
from spark_estimator.estimators.torch.exchange import check_exchange
from spark_estimator.estimators.torch.losses import TorchParts, check_reduction, divides_by_class, to_module
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.estimators.torch.steps.schedules import read_schedule
from spark_estimator.torch.sending import prepare_to_send


def check_callable(name: str, function: Any) -> None:
    """Raise TypeError for a value that cannot be called with (output, label).

    Raises:
        TypeError: it is a class, or cannot be called.
    """
    if isinstance(function, type):
        raise TypeError(f"{name} contains the class {function.__name__}; pass an instance: {function.__name__}().")
    if not callable(function):
        raise TypeError(
            f"{name} must contain functions of (output, label) or torch.nn modules; got {describe_value(function)}."
        )


def check_numbers(model: nn.Module) -> None:
    """Raise ValueError if a model's parameters are not initialized yet, or are of a type that cannot be trained
    here.

    Raises:
        ValueError: a parameter is lazy or a ScriptModule's, or a tensor that ranks exchange is complex.
    """
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            which = f"the model's {name} is" if name else "model is"
            raise ValueError(
                f"{which} a ScriptModule of torch.jit, whose parameters can't be sent to the processes together with "
                "their optimizer. Give the torch.nn.Module that it was made of, and script what was trained: "
                "torch.jit.script(fitted.getModel())."
            )
    for name, number in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(number):
            raise ValueError(
                f"the model's {name} is uninitialized, because its layer is lazy. Call the model on a batch once, "
                "before creating the optimizer, so that all processes start from the same values."
            )
    for name, number in model.state_dict().items():  # buffers outside of it (rotary embeddings) stay where they are
        if isinstance(number, torch.Tensor) and number.is_complex():
            raise ValueError(f"the model's {name} has type {number.dtype}; complex parameters are not supported.")


def accumulates(minibatch: Callable[..., Any]) -> bool:
    """Return whether a train_minibatch_fn takes Horovod's nine arguments: it steps once in backward_passes_per_step
    calls.
    """
    try:
        parameters = inspect.signature(minibatch).parameters.values()
    except (TypeError, ValueError):
        return False
    return (
        sum(parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters)
        == 9
    )


def _construct_loss(make: Callable[..., Any], model: nn.Module) -> Any:
    """Return the loss that a function of `loss_constructors` makes. Horovod's functions take keywords, `model` among
    them.
    """
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return make()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return make(model=model) if takes_any or "model" in parameters else make()


def make_parts(value: Callable[[str], Any]) -> tuple[TorchParts, list[str]]:
    """Return the parts for the ranks, and the labels' names.

    Args:
        value: gives a parameter by its name.

    Raises:
        TypeError, ValueError: it is missing, or of another kind.
    """
    model, optimizer = value("model"), value("optimizer")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {describe_value(model)}.")
    check_numbers(model)
    prepare_to_send(model)
    check_callbacks(value("callbacks"))
    if not isinstance(optimizer, torch.optim.Optimizer):
        shown = describe_value(optimizer, "model.parameters()")
        raise TypeError(f"optimizer must be a torch.optim optimizer of the model's parameters; got {shown}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS is not supported, because it evaluates the loss several times per step. Choose another optimizer."
        )
    parameter_ids = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in parameter_ids]
    if foreign:
        raise ValueError(
            f"the optimizer has {len(foreign)} parameters that are not the model's. Create it with model.parameters()."
        )
    labels = check_labels(value)
    losses = value("loss") or []
    constructors = value("loss_constructors") or []
    if losses and constructors:
        raise ValueError("loss and loss_constructors can't be combined.")
    losses = [to_module(loss) for loss in losses or [_construct_loss(make, model) for make in constructors]]
    if len(losses) == 1:  # for all columns, as in Horovod
        losses *= len(labels)
    if not losses:
        raise ValueError("loss is required, one per label column, for example loss=torch.nn.MSELoss().")
    for loss in losses:
        check_callable("loss", loss)
    if len(losses) != len(labels):
        raise ValueError(f"got {len(losses)} losses for {len(labels)} label columns; give one per column.")
    for loss in losses:
        check_reduction(loss)
        if value("sample_weight_col") and divides_by_class(loss):
            raise ValueError(
                f"{loss!r} divides by its classes' weights and sample_weight_col by rows, so that together they "
                "have no mean: multiply the class's weight into the column, and leave the loss without."
            )
    shares = value("loss_weights") or [1 / len(losses)] * len(losses)
    if len(shares) != len(losses):
        raise ValueError(f"got {len(shares)} loss_weights for {len(losses)} losses.")
    scheduler = read_schedule(value)[1]
    if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
        shown = describe_value(scheduler, "optimizer, ...")
        raise ValueError(f"lr_scheduler must be a scheduler of this estimator's optimizer; got {shown}.")
    rate = value("learning_rate")
    if rate is not None and scheduler is not None:
        raise ValueError(
            f"learning_rate={rate} and lr_scheduler were both given: a scheduler begins with the optimizer's own."
        )
    if rate is not None:
        optimizer = _set_rate(optimizer, rate)
    metrics, metric_names = group_metrics(value("metrics"), labels)
    for metric in itertools.chain.from_iterable(metrics):
        check_callable("metrics", metric)
    minibatch, precision = value("train_minibatch_fn"), value("mixed_precision")
    if minibatch is not None and precision is not None:
        raise ValueError(
            "train_minibatch_fn does the whole step itself: leave out mixed_precision (use torch.autocast inside)."
        )
    if minibatch is not None and value("backward_passes_per_step") > 1 and not accumulates(minibatch):
        raise ValueError(
            "train_minibatch_fn takes seven arguments and does a whole step for each batch: leave out "
            "backward_passes_per_step, or take two more arguments, backward_passes_per_step and batch_idx."
        )
    recipe = StepRecipe.from_parameters(value)
    recipe.check_schedule(scheduler, optimizer, value, metric_names)
    sparse = next((name for name, module in model.named_modules() if getattr(module, "sparse", None) is True), None)
    if sparse is not None and (recipe.clip_norm or recipe.clip_value or recipe.skips or precision == "fp16"):
        raise ValueError(
            f"the model's {sparse!r} has sparse=True, and PyTorch neither clips nor checks sparse gradients: leave out "
            "gradient_clip_norm, gradient_clip_value, on_nonfinite='skip' and mixed_precision='fp16', or sparse=True."
        )
    if minibatch is not None and (changes := ", ".join(replace(recipe, compile=None, channels_last=False).describe())):
        raise ValueError(f"train_minibatch_fn does the whole step itself: leave out what changes it ({changes}).")
    parts = TorchParts(
        model=model,
        optimizer=optimizer,
        losses=losses,
        loss_weights=shares,
        metrics=metrics,
        scheduler=scheduler,
        compression=value("gradient_compression"),
        label_shapes=value("label_shapes"),
        labels=labels,
        precision=precision,
        callbacks=value("callbacks"),
        minibatch=minibatch,
        metric_names=metric_names,
        rate_is_joint=value("sync") != "allreduce",
        settings=() if value("sync") == "allreduce" else (f"sync={value('sync')}, inner_steps={value('inner_steps')}",),
        sync=value("sync"),
        inner_steps=value("inner_steps"),
        recipe=recipe,
    )
    check_exchange(parts.compression, parts.sync)
    return parts, labels


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> torch.optim.Optimizer:
    """Return the optimizer with the same parameters and another learning rate; the original is not changed."""
    other = copy.copy(optimizer)
    # "initial_lr" is that of a schedule which the optimizer has had before.
    kept = [{name: value for name, value in group.items() if name != "initial_lr"} for group in optimizer.param_groups]
    other.param_groups = [{**group, "lr": rate} for group in kept]
    return other
