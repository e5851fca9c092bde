"""What users choose of a training's steps, and how each is made of the joint gradient: clipped, scaled or skipped."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from spark_estimator.errors import DataError
from spark_estimator.estimators.checks import check_alternatives
from spark_estimator.estimators.torch.steps.schedules import (
    Rates,
    RateSchedule,
    check_monitor,
    check_movement,
    read_schedule,
    try_schedule,
)


@dataclass(frozen=True)
class StepRecipe:
    """How a training makes its steps.

    Attributes:
        clip_norm: the most that the norm of the whole gradient may be; 0: any.
        clip_value: the most that an element of it may be; 0: any.
        schedule: how the learning rate moves; None: it stays, or the scheduler that the user has made moves by epoch.
        skips: leave out steps whose joint gradient is not finite.
        compile: arguments of torch.compile; None: the model is not compiled.
        channels_last: the memory format of weights and inputs of images.
        validate_every_steps: batches between validations within an epoch; 0: there are none. It changes no step, but
            has ranks that step alone exchange their parameters.
    """

    clip_norm: float = 0.0
    clip_value: float = 0.0
    schedule: RateSchedule | None = None
    skips: bool = False
    compile: Mapping[str, Any] | None = None
    channels_last: bool = False
    validate_every_steps: int = field(default=0, compare=False)

    @classmethod
    def from_parameters(cls, value: Callable[[str], Any]) -> StepRecipe:
        """Return the recipe that an estimator's parameters describe.

        Args:
            value: returns a parameter by its name.

        Raises:
            ValueError: parameters contradict each other.
        """
        check_alternatives(value)
        return cls(
            clip_norm=value("gradient_clip_norm"),
            clip_value=value("gradient_clip_value"),
            schedule=read_schedule(value)[0],
            skips=value("on_nonfinite") == "skip",
            compile=read_compile(value("compile")),
            channels_last=value("channels_last"),
            validate_every_steps=value("validate_every_steps") or 0,
        )

    def check_schedule(
        self,
        scheduler: Any,
        optimizer: torch.optim.Optimizer,
        value: Callable[[str], Any],
        metric_names: Iterable[Iterable[str]],
    ) -> None:
        """Check the schedule, and what validations are compared by, on the driver; warn of a schedule that is made for
        another number of steps.

        Args:
            scheduler: if the user has made it.
            optimizer: stays as it is.
            value: as of `from_parameters`.
            metric_names: as of `TorchParts`.

        Raises:
            TypeError, ValueError: the schedule makes no scheduler, or one that cannot move that way.
        """
        epochs, has_validation = value("epochs") or 1, value("validation") is not None
        names = list(itertools.chain.from_iterable(metric_names))
        if self.validate_every_steps and not has_validation:
            raise ValueError(f"validate_every_steps={self.validate_every_steps} needs validation.")
        parts = ("train",) * (not self.validate_every_steps) + ("validation",) * has_validation
        check_monitor("monitor", value("monitor"), names, parts)
        if self.schedule is not None:
            if scheduler is None:
                scheduler = try_schedule(self.schedule, optimizer, epochs)
            else:
                check_movement(self.schedule, scheduler)
            parts = ("train",) + ("validation",) * has_validation
            check_monitor("lr_scheduler: 'monitor'", self.schedule.monitor, names, parts)
        if self.schedule is None or not self.schedule.by_step:
            from spark_estimator.estimators.torch.advice import warn_of_schedule  # it imports pyspark

            warn_of_schedule(scheduler, epochs)

    def describe(self) -> list[str]:
        """Return ``name=value`` for each choice that is not the default, which a run that resumes must have, too."""
        chosen = {item.name: getattr(self, item.name) for item in fields(self) if item.compare}
        return [f"{name}={value}" for name, value in chosen.items() if value != getattr(PLAIN, name)]


#: This number of skipped steps in a row is an error. A scaler's first scales are too large, and skip some.
MOST_SKIPPED = 25
#: A step is the optimizer's own.
PLAIN = StepRecipe()


def read_compile(value: bool | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the arguments of torch.compile.

    Raises:
        ValueError: it does not take one of them.
    """
    if isinstance(value, bool):
        return {} if value else None
    unknown = value.keys() - (inspect.signature(torch.compile).parameters.keys() - {"model"})
    if unknown:
        raise ValueError(f"compile={value!r}: torch.compile has no argument {sorted(unknown)[0]!r}.")
    return value


class Stepper:
    """Makes the steps of one training.

    Attributes:
        rates: of the optimizer.
        may_skip: steps whose gradient is not finite are skipped.

    Args:
        optimizer: as `wrap_optimizer` makes it.
        scaler: of the loss; None: it is not scaled.
        scheduler: as of `Rates`.
        steps_locally: each rank steps by its own gradients, so that it clips these.
    """

    def __init__(
        self,
        recipe: StepRecipe,
        optimizer: Any,
        scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        *,
        steps_locally: bool,
    ) -> None:
        self.rates = Rates(recipe.schedule, scheduler, optimizer)
        self.may_skip = recipe.skips or scaler is not None
        self._recipe = recipe
        self._optimizer = optimizer
        self._scaler = scaler
        self._steps_locally = steps_locally
        self._skipped = 0  # in a row

    def differentiate(self, loss: torch.Tensor, *, is_finite: bool = True) -> None:
        """Run a backward pass, at the end of the last one of a step with the exchange.

        Args:
            is_finite: False: the gradient becomes NaN, so that all ranks see it without a further message.
        """
        if not is_finite:
            loss = loss * math.nan
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def step(self, settle: Callable[[bool], None]) -> None:
        """Make a step, and move the rates; or skip both, the same on ranks that step together. A collective.

        Args:
            settle: where steps may be skipped, is called with whether this one is made, before it is: recovery takes
                what the rank has counted from there.

        Raises:
            DataError: too many steps were skipped in a row.
        """
        is_made = self._step(settle)
        self.rates.end_step(taken=is_made)
        self._skipped = 0 if is_made else self._skipped + 1
        if self._skipped >= MOST_SKIPPED:
            raise DataError(
                f"{self._skipped} steps in a row were skipped, because the gradient was NaN or infinite: lower the "
                "learning rate, or remove the rows that the messages above name."
            )

    def _step(self, settle: Callable[[bool], None]) -> bool:
        recipe, optimizer = self._recipe, self._optimizer
        if not (self.may_skip or recipe.clip_norm or recipe.clip_value):
            optimizer.step()
            return True
        exchanged: Any = contextlib.nullcontext()
        if not self._steps_locally:
            optimizer.synchronize()  # an epoch's last step may have too few passes to exchange by itself
            exchanged = optimizer.skip_synchronize()
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
            self._scaler.update()
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        is_finite = True
        if self.may_skip and parameters:
            gradients = [each.grad for each in parameters]
            is_finite = bool(torch.nn.utils.get_total_norm(gradients, math.inf).isfinite())
        if self.may_skip:
            settle(is_finite)
        if not is_finite:
            # A step without gradients changes nothing, and is a step to what counts them: recovery, local steps.
            for each in parameters:
                each.grad = None
        elif recipe.clip_value:
            torch.nn.utils.clip_grad_value_(parameters, recipe.clip_value)
        elif recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
        with exchanged:
            optimizer.step()
        return is_finite

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, also of another process."""
        more = {} if self._scaler is None else {"scaler": self._scaler.state_dict()}
        return {**self.rates.state_dict(), **more, **({"skipped": self._skipped} if self.may_skip else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.rates.load_state_dict(state)
        self._skipped = state.get("skipped", 0)
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(dict(state["scaler"]))
