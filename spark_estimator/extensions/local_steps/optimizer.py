"""`DiLoCo` and `LocalSGD`: make an optimizer exchange the changes of its parameters, at intervals."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

from spark_estimator.extensions.local_steps.fragment import OuterStep
from spark_estimator.extensions.local_steps.rounds import Rounds
from spark_estimator.extensions.local_steps.schedule import ExchangeSchedule
from spark_estimator.observe import progress
from spark_estimator.torch import Compression, ProcessSet, global_process_set
from spark_estimator.torch.collectives.memory import describe_call
from spark_estimator.torch.compression.int8 import Int8
from spark_estimator.torch.optimizer.arguments import check_names, check_optimizer, count_ranks
from spark_estimator.torch.optimizer.classes import make_wrapped_class, reduce_to_user_class, unwrap_class
from spark_estimator.torch.optimizer.optimizer import DistributedMethods
from spark_estimator.torch.optimizer.separate_steps import SeparateSteps

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_ATTRIBUTE = "_local_steps"
# By which a GradScaler calls step() also where it would skip it: the ranks count their steps.
_TAKES_SCALE = "_step_supports_amp_scaling"


def DiLoCo(  # a function that is used like a class, as DistributedOptimizer
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    inner_steps: int = 32,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.5,
    fragments: int = 1,
    delay: int = 0,
    mixing: float = 0.5,
    compression: Any = Compression.int8,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Make an optimizer step with this rank's own gradients, and an outer step with all ranks at intervals.

    After `inner_steps` steps the ranks average the changes of their parameters (the outer gradient), and all
    update the last common parameters by SGD with Nesterov momentum (Douillard et al. 2023). A parameter takes
    about 1 byte for each exchange where `DistributedOptimizer` takes 4 in each step: 126 times less with 32 inner
    steps. Between two exchanges nothing is sent, and ranks need not be equally fast.

    With `fragments` and `delay` exchanges overlap with steps (Douillard et al. 2025): a part of the parameters is
    exchanged at a time, while the ranks make `delay` steps.

    The learning rate is that of one process. Call ``synchronize()`` before a model is evaluated or saved, and at
    the end: until then each rank has other parameters. All ranks must make equally many steps. Buffers, such as
    those of batch normalisation, are not exchanged. With a ``GradScaler``, a step whose gradients overflow counts
    as a step.

    A rank that is lost in an elastic job costs what it has done itself since the last exchange, and no other rank
    anything: with a ``TorchState`` that has this optimizer, no rank returns to a commit.

    Args:
        optimizer: any ``torch.optim.Optimizer``; the same object is returned. Add all parameters before the first step.
        named_parameters: usually ``model.named_parameters()``, for messages.
        inner_steps: between two exchanges of a parameter.
        outer_lr, outer_momentum: of the outer step. The papers' momentum of 0.9 pays in long trainings, and loses
            accuracy in those of few exchanges.
        fragments: the number of parts, of nearly equal size, that take turns.
        delay: steps between sending a fragment and using its result; less than `inner_steps`. 0: ranks wait.
        mixing: with a delay, the share of a rank's own parameters when it takes that.
        compression: `Compression.int8` or `Compression.none` (float32). Parameters on a GPU are sent through host
            memory.
        process_set: over whose ranks; a rank outside it steps alone.

    Raises:
        ValueError: an argument is out of range, or `named_parameters` does not cover the optimizer's parameters.
        MismatchError: in the first step: the ranks' parameters or settings differ.
    """
    kind = "DiLoCo"
    _check_number(kind, "outer_lr", outer_lr, 0, math.inf)
    _check_number(kind, "outer_momentum", outer_momentum, 0, 1, least=True)
    _check_number(kind, "mixing", mixing, 0, 1, least=True)
    schedule = ExchangeSchedule(inner_steps, fragments, delay)
    return _wrap_optimizer(
        kind, optimizer, named_parameters, schedule, (outer_lr, outer_momentum, mixing), compression, process_set
    )


def LocalSGD(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    inner_steps: int = 32,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Make an optimizer step with this rank's own gradients, and average all ranks' parameters after `inner_steps`.

    It is `DiLoCo` with an outer learning rate of 1, no momentum and no overlap; see there for arguments, errors,
    and when to call ``synchronize()``.
    """
    schedule = ExchangeSchedule(inner_steps)
    return _wrap_optimizer("LocalSGD", optimizer, named_parameters, schedule, (1.0, 0.0, 0.0), compression, process_set)


@dataclass
class _LocalSteps:
    """The state that wrapping adds to an optimizer.

    Attributes:
        rounds: its exchanges; None on a rank outside of the process set.
        hooks: of the optimizer.
        scales: whether it takes a GradScaler's scale itself.
    """

    rounds: Rounds | None
    hooks: list[Any]
    scales: bool


class LocalStepsMethods(SeparateSteps):
    """The methods that `DiLoCo` and `LocalSGD` add to the user's optimizer class."""

    _local_steps: _LocalSteps

    def synchronize(self) -> None:
        """Wait until all ranks have the same parameters, which include all their steps. Collective.

        Raises:
            HorovodInternalError: a rank is lost.
        """
        if self._local_steps.rounds is not None:
            self._local_steps.rounds.synchronize()

    @property
    def inner_steps(self) -> int | None:
        """Return the steps between two exchanges of a parameter; None on a rank that exchanges nothing."""
        rounds = self._local_steps.rounds
        return None if rounds is None else rounds.schedule.inner_steps

    @property
    def has_begun(self) -> bool:
        """Return whether the optimizer has made a step."""
        return self._local_steps.rounds is not None and bool(self._local_steps.rounds.fragments)

    @property
    def is_common(self) -> bool:
        """Return whether all ranks have the same parameters: it has made no step since the last exchange."""
        return self._local_steps.rounds is None or self._local_steps.rounds.is_common

    def agree_before_exchange(self, agree: Callable[[], None]) -> None:
        """Have a collective called before each exchange.

        Raises:
            ValueError: parameters are exchanged in several fragments, or late.
        """
        rounds = self._local_steps.rounds
        if rounds is None or rounds.schedule.fragments > 1 or rounds.schedule.delay:
            raise ValueError("DiLoCo: recovery at an exchange needs one of all parameters: fragments=1 and delay=0.")
        rounds.agree = agree

    def rewind(self) -> bool:
        """Take the parameters of the last exchange, the state stays. Return whether there was no step since then."""
        is_common, rounds = self.is_common, self._local_steps.rounds
        if rounds is not None:
            rounds.rewind()
        return is_common

    @property
    def outer_steps(self) -> int:
        """Return the number of outer steps that the parameters have made."""
        rounds = self._local_steps.rounds
        return 0 if rounds is None else max((fragment.version for fragment in rounds.fragments), default=0)

    @property
    def bytes_given(self) -> int:
        """Return the bytes that this rank gave to the last exchange of all parameters, in the form in which they are
        sent.
        """
        return 0 if self._local_steps.rounds is None else self._local_steps.rounds.bytes_given

    def drop_exchange(self) -> None:
        """Discard requests in flight, after the job has failed: the next exchange covers all changes."""
        if self._local_steps.rounds is not None:
            self._local_steps.rounds.drop()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's own state, with the last common parameters and the outer momentum as ``"outer"``.

        Call ``synchronize()`` before: the model's parameters are this rank's own otherwise.
        """
        state = super().state_dict()
        outer = None if self._local_steps.rounds is None else self._local_steps.rounds.get_state()
        return state if outer is None else {**state, "outer": outer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's own state. Without ``"outer"`` the ranks begin at the parameters as they are."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "outer"})
        if self._local_steps.rounds is not None:
            self._local_steps.rounds.load(state_dict.get("outer"))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as the optimizer does, before the first step. Raise ValueError afterwards."""
        local_steps = getattr(self, _ATTRIBUTE, None)
        if local_steps is not None and local_steps.rounds is not None and local_steps.rounds.fragments:
            raise ValueError(
                f"{describe_call('DiLoCo')}: add_param_group() works before the first step only. Call synchronize(), "
                "and wrap a new optimizer."
            )
        super().add_param_group(param_group)

    def unwrap(self) -> None:
        """Remove the wrapping: the optimizer steps alone then."""
        local_steps = self._local_steps
        for hook in local_steps.hooks:
            hook.remove()
        if local_steps.rounds is not None:
            local_steps.rounds.close()
        self.__class__ = unwrap_class(self)  # type: ignore[assignment]  # which is what it was
        delattr(self, _ATTRIBUTE)
        if not local_steps.scales and hasattr(self, _TAKES_SCALE):
            delattr(self, _TAKES_SCALE)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy or pickle as an optimizer of the user's own class, which belongs to no job."""
        return reduce_to_user_class(self, {_ATTRIBUTE} if self._local_steps.scales else {_ATTRIBUTE, _TAKES_SCALE})


def _wrap_optimizer(
    kind: str,
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    schedule: ExchangeSchedule,
    step: tuple[float, float, float],
    compression: Any,
    process_set: ProcessSet,
) -> OptimizerT:
    check_optimizer(optimizer, kind)
    if isinstance(optimizer, DistributedMethods):
        raise ValueError(
            f"{describe_call(kind)}: the optimizer is a DistributedOptimizer, which averages the gradients of each "
            "step. Wrap the optimizer that it was made of."
        )
    names = check_names(optimizer, named_parameters)
    over = None if process_set is global_process_set else process_set
    count_ranks(over)  # raises before init(), while nothing has been changed
    rate, momentum, mixing = map(float, step)
    outer = OuterStep(rate, momentum, mixing, _is_int8(kind, compression), over)
    if isinstance(optimizer, LocalStepsMethods):
        optimizer.unwrap()
    included = over is None or over.included()
    rounds = Rounds(optimizer, names, schedule, outer) if included else None
    hooks = [
        optimizer.register_step_pre_hook(_handle_before_step),
        optimizer.register_step_post_hook(_handle_after_step),
    ]
    local_steps = _LocalSteps(rounds, hooks, bool(getattr(optimizer, _TAKES_SCALE, False)))
    optimizer.__class__ = make_wrapped_class(LocalStepsMethods, type(optimizer))  # type: ignore[assignment]  # a subclass
    setattr(optimizer, _ATTRIBUTE, local_steps)
    setattr(optimizer, _TAKES_SCALE, True)
    return optimizer


def _is_int8(kind: str, compression: Any) -> bool:
    if compression is Compression.none or compression is None:
        return False
    if isinstance(compression, Int8):
        return True
    raise ValueError(
        f"{describe_call(kind)}: compression={compression!r} must be hvd.Compression.int8 or hvd.Compression.none."
    )


def _check_number(kind: str, name: str, value: Any, low: float, high: float, *, least: bool = False) -> None:
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not valid or not (low < float(value) < high or (least and value == low)):
        bounds = "0 or more and less than 1" if least else "a finite number greater than 0"
        raise ValueError(f"{describe_call(kind)}: {name}={value!r} must be {bounds}.")


@_disable_dynamo
def _handle_before_step(optimizer: LocalStepsMethods, args: Any, kwargs: Any) -> None:
    local_steps = optimizer._local_steps
    if local_steps.rounds is not None:
        local_steps.rounds.before_step()
    overflow = getattr(optimizer, "found_inf", None)
    if overflow is None or local_steps.scales:
        return
    scale = getattr(optimizer, "grad_scale", None)
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is None:
                continue
            if overflow.item():
                param.grad = None  # which leaves the parameter and its state as they are
            elif scale is not None:
                param.grad.div_(scale.to(param.grad.device))
    optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]  # its step is an ordinary one


@_disable_dynamo
def _handle_after_step(optimizer: LocalStepsMethods, args: Any, kwargs: Any) -> None:
    progress.count_step()
    if optimizer._local_steps.rounds is not None:
        optimizer._local_steps.rounds.after_step()
