"""Multiplies the learning rates of optimizers, and those from which their schedules compute the next ones.

Horovod multiplies ``lr`` of every parameter group, and in Lightning 1 ``base_lrs`` of every schedule. This module does
the same with the other rates of PyTorch's schedules: the rate of each step is then that of one process times the
factor, with any schedule of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch

#: Keys of a parameter group that hold a rate. OneCycleLR keeps all of its rates there, SWALR its last one.
_GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
#: Attributes of a schedule that hold a rate, or a list with one rate for each parameter group.
_SCHEDULE_ATTRIBUTES = ("base_lrs", "max_lrs", "min_lrs", "default_min_lr", "eta_min", "eps", "_last_lr")


def multiply_groups(groups: Iterable[dict[str, Any]], factor: float) -> None:
    """Multiplies the rates of parameter groups; of an optimizer's `defaults`, with which later groups begin, too."""
    # A wrapper may share its groups with the optimizer inside.
    for group in {id(group): group for group in groups}.values():
        for key in _GROUP_KEYS:
            rate = group.get(key)
            if is_rate(rate):
                # Not in place: groups may share one tensor, and the user may keep it for the next optimizer.
                group[key] = rate * factor


def multiply_schedules(schedules: Iterable[Any], factor: float) -> list[Any]:
    """Multiplies the rates that schedules keep, each once. Returns those of which no rate is known here."""
    multiplied: set[int] = set()
    return [schedule for schedule in schedules if not _multiply_schedule(schedule, factor, multiplied)]


def is_rate(value: Any) -> TypeGuard[float | torch.Tensor]:
    """Return whether a value of a parameter group is a number, or a tensor."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or isinstance(value, torch.Tensor)


def _multiply_schedule(schedule: Any, factor: float, multiplied: set[int]) -> bool:
    """Multiply a schedule's rates; return whether it has known ones. `multiplied` has the ids of those done."""
    if id(schedule) in multiplied:
        return True
    multiplied.add(id(schedule))
    has_rates = False
    for name in _SCHEDULE_ATTRIBUTES:
        value = getattr(schedule, name, None)
        if isinstance(value, (list, tuple)) and all(map(is_rate, value)):
            setattr(schedule, name, type(value)([rate * factor for rate in value]))
            has_rates = True
        elif is_rate(value):
            setattr(schedule, name, value * factor)
            has_rates = True
    # Those of SequentialLR and ChainedScheduler.
    inner_schedules = getattr(schedule, "_schedulers", None)
    for inner in inner_schedules if isinstance(inner_schedules, (list, tuple)) else ():
        has_rates = _multiply_schedule(inner, factor, multiplied) or has_rates
    return has_rates
