"""The factor of the learning rates that a Trainer's optimizers and schedules have: the number of ranks, or 1.

Each HorovodStrategy of Lightning 0.7 to 1.9 multiplied ``lr`` of every parameter group and ``base_lrs`` of every
schedule; `torch.rates` also multiplies the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spark_estimator.torch.rates import is_rate, multiply_groups, multiply_schedules

#: Where a Lightning checkpoint keeps the factor of its rates. A checkpoint with plain rates does not have it.
CHECKPOINT_KEY = "spark_estimator_lr_factor"


@dataclass(frozen=True)
class _Scaled:
    """The factor of an optimizer's rates, and the schedules that were multiplied by it."""

    factor: int
    schedules: Sequence[weakref.ref[Any]]


#: A module may return the same optimizers to each ``fit``.
_scaled: weakref.WeakKeyDictionary[Optimizer, _Scaled] = weakref.WeakKeyDictionary()


def scale(optimizers: Sequence[Optimizer], schedules: Sequence[Any], factor: int) -> str:
    """Multiplies all rates of new optimizers and schedules by `factor`.

    Returns:
        A line for the log, with the rates before and after; empty where no optimizer has one.
    """
    before = [_list_rates(optimizer) for optimizer in optimizers]
    unchanged = multiply_schedules(schedules, factor)
    multiply_groups(_list_groups(optimizers), factor)
    remember(optimizers, schedules, factor)
    if not any(before):
        return ""
    changes = [
        f"{type(optimizer).__name__} lr {_format_rates(old)} -> {_format_rates(_list_rates(optimizer))}"
        for optimizer, old in zip(optimizers, before, strict=True)
        if old
    ]
    changes += [f"{type(schedule).__name__} has no base_lrs and may set other rates" for schedule in unchanged]
    return (
        f"The learning rate is multiplied by {factor}, the number of ranks: {'; '.join(changes)}. scale_lr=False "
        "leaves it as it is."
    )


def rescale(optimizers: Sequence[Optimizer], schedules: Sequence[Any], old: int, new: int) -> None:
    """Change the factor of rates that were multiplied by `old` to `new`."""
    if old == new:
        remember(optimizers, schedules, new)
        return
    multiply_groups(_list_groups(optimizers), new / old)
    multiply_schedules(schedules, new / old)
    remember(optimizers, schedules, new)


def note_factor(checkpoint: dict[str, Any], optimizers: Iterable[Optimizer]) -> None:
    """Put the factor of the optimizers' rates into a checkpoint that holds these optimizers."""
    factor = find_factor(optimizers)
    if factor != 1 and "optimizer_states" in checkpoint:
        checkpoint[CHECKPOINT_KEY] = factor


def adopt_factor(checkpoint: Mapping[str, Any], optimizers: Sequence[Optimizer], schedules: Sequence[Any]) -> str:
    """Use the factor of a checkpoint whose rates the optimizers now have.

    Returns:
        A line for the log if the factor is not that of this job; else an empty one.
    """
    ours, theirs = find_factor(optimizers), checkpoint.get(CHECKPOINT_KEY)
    if ours == (theirs or 1):
        return ""
    remember(optimizers, schedules, theirs or 1)
    shown = _format_rates([rate for optimizer in optimizers for rate in _list_rates(optimizer)])
    return (
        f"The training continues with the learning rate of the checkpoint, {shown}. The factor of the checkpoint is "
        f"{theirs or 'unknown'}; the factor of this job is {ours}."
    )


def remember(optimizers: Iterable[Optimizer], schedules: Iterable[Any], factor: int) -> None:
    """Note the factor that the rates of a Trainer's optimizers and schedules have."""
    references = [weakref.ref(schedule) for schedule in schedules]
    for optimizer in optimizers:
        if factor == 1:
            _scaled.pop(optimizer, None)
        else:
            _scaled[optimizer] = _Scaled(factor, references)


def find_factor(optimizers: Iterable[Optimizer]) -> int:
    """Return the factor that a Trainer's optimizers have; 1 where their rates are plain, or nothing is known."""
    return next((_scaled[optimizer].factor for optimizer in optimizers if optimizer in _scaled), 1)


def make_plain(module: nn.Module) -> None:
    """Divides the rates of the module's optimizers from an earlier ``fit`` by the factor that they have."""
    params = {id(param) for param in module.parameters()}
    earlier = [
        (optimizer, scaled)
        for optimizer, scaled in list(_scaled.items())
        if any(id(param) in params for group in optimizer.param_groups for param in group["params"])
    ]
    for optimizer, scaled in earlier:
        multiply_groups(_list_groups([optimizer]), 1 / scaled.factor)
        del _scaled[optimizer]
    # A Trainer's optimizers share the list of its schedules.
    of_trainers = {id(scaled.schedules): scaled for _, scaled in earlier}.values()
    for scaled in of_trainers:
        schedules = [schedule for reference in scaled.schedules if (schedule := reference()) is not None]
        multiply_schedules(schedules, 1 / scaled.factor)


def _list_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return the parameter groups of optimizers, and the options with which groups begin that are added later."""
    return [group for optimizer in optimizers for group in (*optimizer.param_groups, optimizer.defaults)]


def _list_rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if is_rate(group.get("lr"))]


def _format_rates(rates: Sequence[float]) -> str:
    """Return rates that differ, in their order."""
    return ", ".join(dict.fromkeys(f"{rate:g}" for rate in rates))
