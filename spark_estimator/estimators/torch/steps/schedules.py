"""Schedules of the learning rate: Hugging Face's by name, and any of PyTorch's, moved after steps or after epochs."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from spark_estimator.errors import DataError
from spark_estimator.estimators.checks import describe_value
from spark_estimator.estimators.training_progress import find_number
from spark_estimator.torch.rates import multiply_groups, multiply_schedules

#: What a rate is multiplied with after the warm-up, at a share of the steps that follow it.
_CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
    "constant": lambda share: 1.0,
}
_FORMS = (
    f"one of {', '.join(map(repr, _CURVES))}; a scheduler of torch.optim; a function of the optimizer, or of the "
    "optimizer and the number of steps; or a dict of one of these ('scheduler'), and 'interval' ('step' or 'epoch') or "
    "'monitor'"
)
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# On the driver, which does not know the number of steps.
_SOME_STEPS = 1000
# Errors that no number of steps is the cause of.
_WRONG_CODE = (TypeError, NameError, AttributeError, ImportError)


@dataclass(frozen=True)
class RateSchedule:
    """How learning rates move.

    Attributes:
        make: makes the scheduler of an optimizer and a number of steps, or of epochs; None: the user has made it.
        counts: `make` depends on that number.
        by_step: it moves after each step; False: after each epoch.
        monitor: the number of an epoch that a ReduceLROnPlateau looks at, such as "validation.loss"; empty: the loss of
            validation, or without one of training.
        label: names it, for the identity of a run.
        warmup: steps of the warm-up, if the user has set their number.
    """

    make: Callable[[Any, int], Any] | None
    counts: bool = False
    by_step: bool = False
    monitor: str = ""
    label: str = ""
    warmup: int = 0

    def __str__(self) -> str:
        return f"{self.label} by {'step' if self.by_step else 'epoch'}{self.monitor and f', of {self.monitor}'}"


def check_schedule(name: str, value: Any) -> Any:
    """Return a value for ``lr_scheduler``, which is not a name or a key that means nothing."""
    inner = value
    if isinstance(value, Mapping):
        inner = value.get("scheduler")
        if value.keys() - {"scheduler", "interval", "monitor"} or value.get("interval", "step") not in (
            "step",
            "epoch",
        ):
            raise ValueError(f"{name} must be {_FORMS}; got {describe_value(value)}.")
    if (value is not None and inner is None) or (isinstance(inner, str) and inner not in _CURVES):
        raise ValueError(f"{name} must be {_FORMS}; got {describe_value(value)}.")
    return value


def read_schedule(value: Callable[[str], Any]) -> tuple[RateSchedule | None, Any]:
    """Return the schedule that an estimator's parameters describe, and the scheduler if the user has made it.

    Args:
        value: returns a parameter by its name.

    Raises:
        TypeError, ValueError: it is none, or something does not belong to it.
    """
    choice, steps, ratio = value("lr_scheduler"), value("warmup_steps"), value("warmup_ratio")
    options = dict(choice) if isinstance(choice, Mapping) else {"scheduler": choice}
    inner, monitor = options["scheduler"], options.get("monitor", "")
    warmup = f"warmup_{'steps' if steps else 'ratio'}={steps or ratio}"
    if (steps or ratio) and not isinstance(inner, str):
        raise ValueError(
            f"{warmup} needs one of the schedules by name: lr_scheduler={' or '.join(map(repr, _CURVES))}."
        )
    if inner is None:
        return None, None
    if isinstance(inner, str):
        make = functools.partial(_make_curve, inner, steps, ratio)
        schedule = RateSchedule(make, True, True, label=f"{inner}, {warmup}", warmup=steps)
    elif hasattr(inner, "step") and not isinstance(inner, type):
        if inner is choice:
            return None, inner
        schedule = RateSchedule(None, label=type(inner).__qualname__)
    elif callable(inner) and not isinstance(inner, type):
        call = _Call(inner, _find_number_argument(inner))
        counts = call.number is not None
        schedule = RateSchedule(call, counts, counts, label=_get_name(inner))
    else:
        raise TypeError(f"lr_scheduler must be {_FORMS}; got {describe_value(inner, 'optimizer, ...')}.")
    by_step = options["interval"] == "step" if "interval" in options else schedule.by_step
    if steps and not by_step:
        raise ValueError(
            f"{warmup} counts steps, and lr_scheduler moves by epoch: leave out 'interval', or set warmup_ratio, a "
            "share of the epochs."
        )
    schedule = replace(schedule, by_step=by_step, monitor=monitor)
    return schedule, None if schedule.make is not None else inner


@dataclass(frozen=True)
class _Call:
    """Calls a user's function.

    Attributes:
        number: the keyword of the number of steps; empty: it is the second argument; None: the function takes none.
    """

    function: Callable[..., Any]
    number: str | None

    def __call__(self, optimizer: Any, count: int) -> Any:
        if self.number:
            return self.function(optimizer, **{self.number: count})
        return self.function(optimizer) if self.number is None else self.function(optimizer, count)


def _find_number_argument(function: Callable[..., Any]) -> str | None:
    """Return `_Call.number`.

    Raises:
        TypeError: the function needs further arguments.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _ANY_NUMBER]
    if len(needed) > 2:
        names = ", ".join(each.name for each in needed)
        raise TypeError(
            f"lr_scheduler is called with the optimizer and the number of steps; {_get_name(function)} needs {names}. "
            "Set the others with functools.partial or a lambda."
        )
    if len(needed) < 2:
        return None
    # What follows an argument that functools.partial sets by its name can be set by name only.
    return needed[1].name if needed[1].kind is inspect.Parameter.KEYWORD_ONLY else ""


def _get_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _make_curve(name: str, warmup: int, ratio: float, optimizer: Any, total: int) -> LambdaLR:
    """Return a schedule as transformers' function of that name makes it."""
    warm = warmup or math.ceil(total * ratio)

    def find_factor(step: int) -> float:
        if step < warm:
            return step / max(1, warm)
        return max(0.0, _CURVES[name](min(1.0, (step - warm) / max(1, total - warm))))

    return LambdaLR(optimizer, find_factor)


def try_schedule(schedule: RateSchedule, optimizer: torch.optim.Optimizer, epochs: int) -> Any:
    """Return a scheduler of a copy of the optimizer, whose rates stay as they are, as a rank will have it.

    The ranks count the steps when they have the rows. A function that raises an error for another number may be right:
    None is returned, and the ranks find out before the first step.

    Raises:
        DataError, TypeError, ValueError: as `make_scheduler`, for any number.
    """
    other = copy.copy(optimizer)
    other.param_groups = [
        # A rate that is a tensor is moved in place.
        {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    try:
        return make_scheduler(schedule, other, _SOME_STEPS if schedule.by_step else epochs)
    except DataError as error:
        if schedule.counts and schedule.by_step and not isinstance(error.__cause__, _WRONG_CODE):
            return None
        raise


def make_scheduler(schedule: RateSchedule, optimizer: Any, total: int) -> Any:
    """Return a scheduler of an optimizer.

    Args:
        total: the number of steps, or of epochs.

    Raises:
        DataError: the user's function raises an error for this number.
        TypeError, ValueError: it does not return a scheduler, or one that cannot move that way.
    """
    assert schedule.make is not None
    try:
        scheduler = schedule.make(optimizer, total)
    except Exception as error:
        number = f" for {total} {'steps' if schedule.by_step else 'epochs'}" if schedule.counts else ""
        raise DataError(f"lr_scheduler: {schedule.label} raised {type(error).__name__}{number}: {error}") from error
    if not (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict")):
        raise TypeError(
            f"lr_scheduler must return a scheduler of torch.optim; it returned {describe_value(scheduler)}."
        )
    check_movement(schedule, scheduler)
    return scheduler


def check_movement(schedule: RateSchedule, scheduler: Any) -> None:
    """Raise ValueError for a ReduceLROnPlateau that moves by steps, and for another one that looks at a number."""
    is_plateau = isinstance(scheduler, ReduceLROnPlateau)
    if (is_plateau and schedule.by_step) or (schedule.monitor and not is_plateau):
        raise ValueError(
            f"lr_scheduler: a {type(scheduler).__name__} does not move {schedule}: ReduceLROnPlateau moves by epoch, "
            "and no other looks at a number ('monitor')."
        )


class Rates:
    """Moves the learning rates of one training.

    Attributes:
        scheduler: of the optimizer; None: there is none, or it is not made yet.

    Args:
        scheduler: if the user has made it.
    """

    def __init__(self, schedule: RateSchedule | None, scheduler: Any, optimizer: Any) -> None:
        self.scheduler = scheduler
        self._schedule = schedule or (None if scheduler is None else RateSchedule(None))
        self._optimizer = optimizer
        self._made: tuple[int, int] = (0, 1)  # for how many steps, and for which factor
        self._unmoved = 0  # steps after which it was not moved
        self._moved = 0
        self._loaded: dict[str, Any] | None = None

    def begin_epoch(self, done: int, total: int, factor: int) -> None:
        """Make the scheduler; again if the number of steps has changed, with the ranks or the epochs.

        Args:
            done: steps, or epochs, before this one.
            total: of the training.
            factor: by which rates are multiplied.
        """
        schedule, loaded, self._loaded = self._schedule, self._loaded, None
        if schedule is None or schedule.make is None:
            return
        wanted = (total if schedule.counts else 0, factor)
        if loaded is None and self.scheduler is not None and wanted[0] == self._made[0]:
            self._made = wanted
            return
        groups = self._optimizer.param_groups
        now = [group["lr"] for group in groups]
        for group in groups:
            first = group.get("initial_lr", group["lr"])
            # A rate that is a tensor is moved in place, and the first one stays.
            group["lr"] = first.clone() if isinstance(first, torch.Tensor) else first
        if factor != 1:
            multiply_groups(groups, 1 / factor)
        self.scheduler = make_scheduler(schedule, self._optimizer, total)
        if factor != 1:
            multiply_groups(groups, factor)
            multiply_schedules([self.scheduler], factor)
        # An epoch that begins again is behind the checkpoint.
        fits = self._made == wanted and self._moved == done - self._unmoved
        if loaded is not None and (fits or isinstance(self.scheduler, ReduceLROnPlateau)):
            self.scheduler.load_state_dict(loaded)
            multiply_schedules([self.scheduler], factor / self._made[1])
            for group, rate in zip(groups, now, strict=True):
                group["lr"] = rate
        else:
            self._moved = 0
            for _ in range(done - self._unmoved):
                self._move()
        self._made = wanted

    def end_step(self, *, taken: bool) -> None:
        """Move the rates after a step."""
        schedule = self._schedule
        if schedule is None or not schedule.by_step:
            return
        if taken:
            self._move()
        else:
            self._unmoved += 1

    def end_epoch(self, entry: Mapping[str, Any]) -> None:
        """Move the rates after an epoch, whose entry of the history this is."""
        schedule = self._schedule
        if schedule is None or schedule.by_step or self.scheduler is None:
            return
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(find_number(entry, schedule.monitor))
        else:
            self._move()

    def _move(self) -> None:
        with warnings.catch_warnings():
            # It looks for a step() that it has wrapped itself, in the driver's process.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step|.*optimizer.step")
            self.scheduler.step()
        self._moved += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, also of another process."""
        if self.scheduler is None:
            return {}
        return {"scheduler": self.scheduler.state_dict(), "schedule": [*self._made, self._unmoved, self._moved]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. That of a scheduler that is still to be made is used then; an empty one forgets it."""
        if "scheduler" not in state:
            if self._schedule is not None and self._schedule.make is not None:
                self.scheduler, self._made, self._unmoved, self._moved = None, (0, 1), 0, 0
            return
        *made, self._unmoved, self._moved = state.get("schedule", (0, 1, 0, 0))
        content = copy.deepcopy(state["scheduler"])
        if self._schedule is not None and self._schedule.make is not None:
            self._made, self._loaded = (made[0], made[1]), content
        elif self.scheduler is not None:
            self.scheduler.load_state_dict(content)


def check_monitor(label: str, monitor: str | None, metrics: Iterable[str], parts: Iterable[str]) -> None:
    """Raise ValueError for a monitor that is no number of the history.

    Args:
        label: what it is, for the message.
        metrics: their names.
        parts: of an entry of the history.
    """
    known = [f"{part}.{name}" for part in parts for name in ("loss", *metrics)]
    if monitor and monitor not in known:
        raise ValueError(f"{label} must be one of {', '.join(known)}; got {monitor!r}.")
