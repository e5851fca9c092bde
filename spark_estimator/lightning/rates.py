"""Multiplies the learning rates of optimizers, and those that their schedules keep, by the number of ranks.

Each HorovodStrategy of Lightning 0.7 to 1.9 multiplied ``lr`` of every parameter group and ``base_lrs`` of every
schedule. This module does the same with the other rates from which PyTorch's schedules compute the next ``lr``: the
rate of each step is then that of one process times the factor, with any schedule.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

#: Keys of a parameter group that hold a rate. OneCycleLR keeps all of its rates there, SWALR its last one.
_GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
#: Attributes of a schedule that hold a rate, or a list with one rate for each parameter group.
_SCHEDULE_ATTRIBUTES = ("base_lrs", "max_lrs", "min_lrs", "default_min_lr", "eta_min", "eps", "_last_lr")
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
    before = [_rates(optimizer) for optimizer in optimizers]
    multiplied: set[int] = set()
    unchanged = [schedule for schedule in schedules if not _multiply_schedule(schedule, factor, multiplied)]
    _multiply_groups(optimizers, factor)
    remember(optimizers, schedules, factor)
    if not any(before):
        return ""
    changes = [
        f"{type(optimizer).__name__} lr {_shown(old)} -> {_shown(_rates(optimizer))}"
        for optimizer, old in zip(optimizers, before, strict=True)
        if old
    ]
    changes += [f"{type(schedule).__name__} has no base_lrs and may set other rates" for schedule in unchanged]
    return (
        f"The learning rate is multiplied by {factor}, the number of ranks: {'; '.join(changes)}. scale_lr=False "
        "leaves it as it is."
    )


def rescale(optimizers: Sequence[Optimizer], schedules: Sequence[Any], old: int, new: int) -> None:
    """Changes the factor of rates that were multiplied by `old` to `new`."""
    if old == new:
        remember(optimizers, schedules, new)
        return
    _multiply_groups(optimizers, new / old)
    multiplied: set[int] = set()
    for schedule in schedules:
        _multiply_schedule(schedule, new / old, multiplied)
    remember(optimizers, schedules, new)


def note_factor(checkpoint: dict[str, Any], optimizers: Iterable[Optimizer]) -> None:
    """Puts the factor of the optimizers' rates into a checkpoint that holds these optimizers."""
    factor = factor_of(optimizers)
    if factor != 1 and "optimizer_states" in checkpoint:
        checkpoint[CHECKPOINT_KEY] = factor


def restored(checkpoint: Mapping[str, Any], optimizers: Sequence[Optimizer], schedules: Sequence[Any]) -> str:
    """Uses the factor of a checkpoint whose rates the optimizers now have.

    Returns:
        A line for the log if the factor is not that of this job; else an empty one.
    """
    ours, theirs = factor_of(optimizers), checkpoint.get(CHECKPOINT_KEY)
    if ours == (theirs or 1):
        return ""
    remember(optimizers, schedules, theirs or 1)
    shown = _shown([rate for optimizer in optimizers for rate in _rates(optimizer)])
    return (
        f"The training continues with the learning rate of the checkpoint, {shown}. The factor of the checkpoint is "
        f"{theirs or 'unknown'}; the factor of this job is {ours}."
    )


def remember(optimizers: Iterable[Optimizer], schedules: Iterable[Any], factor: int) -> None:
    """Notes the factor that the rates of a Trainer's optimizers and schedules have."""
    references = [weakref.ref(schedule) for schedule in schedules]
    for optimizer in optimizers:
        if factor == 1:
            _scaled.pop(optimizer, None)
        else:
            _scaled[optimizer] = _Scaled(factor, references)


def factor_of(optimizers: Iterable[Optimizer]) -> int:
    """The factor that a Trainer's optimizers have; 1 where their rates are plain, or nothing is known."""
    return next((_scaled[optimizer].factor for optimizer in optimizers if optimizer in _scaled), 1)


def make_plain(module: nn.Module) -> None:
    """Divides the rates of the module's optimizers from an earlier ``fit`` by the factor that they have."""
    params = {id(param) for param in module.parameters()}
    earlier = [
        (optimizer, scaled)
        for optimizer, scaled in list(_scaled.items())
        if any(id(param) in params for group in optimizer.param_groups for param in group["params"])
    ]
    multiplied: set[int] = set()
    for optimizer, scaled in earlier:
        _multiply_groups([optimizer], 1 / scaled.factor)
        for reference in scaled.schedules:
            schedule = reference()
            if schedule is not None:
                _multiply_schedule(schedule, 1 / scaled.factor, multiplied)
        del _scaled[optimizer]


def _multiply_groups(optimizers: Iterable[Optimizer], factor: float) -> None:
    # A wrapper may share its groups with the optimizer inside. Groups that are added later begin with the defaults.
    groups = [group for optimizer in optimizers for group in (*optimizer.param_groups, optimizer.defaults)]
    for group in {id(group): group for group in groups}.values():
        for key in _GROUP_KEYS:
            rate = group.get(key)
            if _is_rate(rate):
                # Not in place: groups may share one tensor, and the user may keep it for the next optimizer.
                group[key] = rate * factor


def _multiply_schedule(schedule: Any, factor: float, multiplied: set[int]) -> bool:
    """Whether the schedule has rates that are known here; `multiplied` has the identities of those that are done."""
    if id(schedule) in multiplied:
        return True
    multiplied.add(id(schedule))
    has_rates = False
    for name in _SCHEDULE_ATTRIBUTES:
        value = getattr(schedule, name, None)
        if isinstance(value, (list, tuple)) and all(map(_is_rate, value)):
            setattr(schedule, name, type(value)([rate * factor for rate in value]))
            has_rates = True
        elif _is_rate(value):
            setattr(schedule, name, value * factor)
            has_rates = True
    # Those of SequentialLR and ChainedScheduler.
    parts = getattr(schedule, "_schedulers", None)
    for part in parts if isinstance(parts, (list, tuple)) else ():
        has_rates = _multiply_schedule(part, factor, multiplied) or has_rates
    return has_rates


def _is_rate(value: Any) -> TypeGuard[float | torch.Tensor]:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or isinstance(value, torch.Tensor)


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if _is_rate(group.get("lr"))]


def _shown(rates: Sequence[float]) -> str:
    """Rates that differ, in their order."""
    return ", ".join(dict.fromkeys(f"{rate:g}" for rate in rates))
