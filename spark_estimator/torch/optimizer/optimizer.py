"""``DistributedOptimizer``: the user's own optimizer, whose gradients are averages over all ranks.

The object stays the same; its class becomes a subclass of the user's class with the same name, so that learning-rate
schedulers made before, ``isinstance`` and ``state_dict`` hold. ``step`` itself is not overridden: a scheduler replaces
the instance's method, which bypasses a subclass; the optimizer's step hooks are called either way.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.observe import progress
from spark_estimator.torch.collectives.compressors import UNCHOSEN
from spark_estimator.torch.collectives.memory import describe_call
from spark_estimator.torch.collectives.reductions import check_adasum
from spark_estimator.torch.optimizer.adasum import TAKES_SCALE, AdasumStep
from spark_estimator.torch.optimizer.arguments import (
    check_groups,
    check_names,
    check_op,
    check_optimizer,
    check_passes,
    check_predivide,
    choose_compression,
    count_ranks,
)
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.classes import make_wrapped_class, reduce_to_user_class, unwrap_class
from spark_estimator.torch.optimizer.exchange import GradientExchange, note_new_optimizer
from spark_estimator.torch.optimizer.horovod_names import HorovodNames, Synchronization, warn_about_second_exchange
from spark_estimator.torch.optimizer.separate_steps import SeparateSteps

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

#: The one attribute that wrapping adds to the user's object.
_ATTRIBUTE = "_distributed"


@dataclass
class _Distributed:
    """The additions to a wrapped optimizer. In a job of one rank nothing is exchanged, and no hook is set."""

    options: Options
    passes: int
    exchange: GradientExchange | AdasumStep | None
    hooks: list[Any]
    names: dict[int, str]
    synchronization: Synchronization = Synchronization.BY_STEP


def DistributedOptimizer(  # Horovod's name: a function that is used like a class
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = UNCHOSEN,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Make an optimizer step with gradients that are reduced over all ranks; return that same object.

    Gradients are sent while ``backward()`` is at work on others, and are averages when it returns: clip, unscale and
    log them as in one process. (A backward inside another one's autograd function or hook is part of that: averages are
    there when the outer one returns, or after ``step()``.) A parameter that is not used on some ranks counts as zero
    there; one that no rank uses keeps no gradient.

    A parameter's hook may call ``step()`` in the middle of a pass, on all ranks alike: it averages the gradients that
    have been computed until then. Those that the rest of the pass computes are averaged by the next step.

    All ranks make their optimizers in the same order, in which messages number them from 0, and step them in the same
    order. A parameter that several have is exchanged by the one that was made last; the others step with the result.

    A copy or a pickle is a plain optimizer of the original class: wrap it again. LBFGS works, each evaluation of its
    closure an exchange; its state cannot be broadcast.

    Args:
        optimizer: any ``torch.optim.Optimizer``. Parameters may be added, frozen or unfrozen later, on all ranks alike.
        named_parameters: usually ``model.named_parameters()``, for messages. Ranks whose optimizers have these in other
            orders exchange them by name. None: parameters are named by number.
        compression: how gradients are compressed; see `Compression`. By default SPARK_ESTIMATOR_COMPRESSION chooses it
            (none, fp16 or bf16).
        backward_passes_per_step: the number of backward passes whose gradients are added up before they are sent (they
            are not divided by that number). Before ``step()`` further passes, as many again, may reach parameters that
            no rank has reached in this step, such as another part of the model; others raise AssertionError.
        op: `Average` or `Sum` of gradients. `Adasum`: each rank steps by its own gradients, and what the step has
            changed is combined by the adaptive sum.
        gradient_predivide_factor: f: an average is taken as 1/f before and f/size after the sum.
        num_groups: deprecated, as ``groups=num_groups``.
        groups: which gradients are sent together: a number of nearly equal groups, or lists of parameters; by default
            groups of SPARK_ESTIMATOR_BUCKET_BYTES.
        sparse_as_dense: sparse gradients are sent as dense ones and returned as sparse ones; without it their rows are
            sent.
        process_set: over whose ranks; a rank outside it steps by its own gradients.

    Raises:
        ValueError: an argument is out of range, or `named_parameters` is not a list of unique names that covers the
            optimizer's parameters; Adasum with a compression that works on averages and sums; a process set that is
            not registered.
        NotImplementedError: Adasum for a number of ranks that is no power of two.
        MismatchError: later, from the first backward or step: the ranks' parameters differ; the first one is named.
    """
    check_optimizer(optimizer, "DistributedOptimizer")
    if isinstance(optimizer, SeparateSteps):
        raise ValueError(
            f"{describe_call('DistributedOptimizer')}: the optimizer is one of DiLoCo or LocalSGD, which average the "
            "parameters by themselves. Wrap a new optimizer."
        )
    operation = check_op(op)
    check_predivide(gradient_predivide_factor, operation)
    check_passes(backward_passes_per_step)
    if num_groups:
        if groups is None and num_groups < 0:
            raise ValueError(f"num_groups={num_groups!r} must be 0, or the number of groups.")
        warnings.warn("num_groups= is deprecated; use groups=.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = check_names(optimizer, named_parameters)
    over = None if process_set is global_process_set else process_set
    size = count_ranks(over)  # raises before init(), while nothing has been changed
    compression = choose_compression(compression, operation)
    options = Options(
        compression, operation, gradient_predivide_factor, check_groups(optimizer, groups), sparse_as_dense, over
    )
    check_adasum(operation, size, "DistributedOptimizer")

    unwrap(optimizer)
    note_new_optimizer()
    distributed = _Distributed(options, backward_passes_per_step, None, [], names)
    if size > 1 or (over is None and context.settings().elastic):  # an elastic job may get more ranks
        distributed.hooks = [optimizer.register_step_pre_hook(_before_step), _register_after_step(optimizer)]
        if operation is ReduceOp.ADASUM:
            distributed.exchange = AdasumStep(optimizer, names, options)
        else:
            distributed.exchange = GradientExchange(optimizer, names, backward_passes_per_step, options)
    optimizer.__class__ = make_wrapped_class(DistributedMethods, type(optimizer))  # type: ignore[assignment]  # which is a subclass of it
    setattr(optimizer, _ATTRIBUTE, distributed)
    return optimizer


class DistributedMethods(HorovodNames, torch.optim.Optimizer):
    """The methods that wrapping adds to the user's optimizer class. Horovod's names."""

    _distributed: _Distributed

    def synchronize(self) -> None:
        """Return when all gradients are averages, also those that no backward has computed here. Collective.

        Not needed before clipping or unscaling: the averages are there when ``backward()`` returns.
        """
        distributed = self._distributed
        if distributed.exchange is not None:
            distributed.exchange.synchronize()
            distributed.exchange.forget_passes()
            if distributed.options.op is not ReduceOp.ADASUM:
                distributed.synchronization = Synchronization.CALLED

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have ``step()`` take the gradients as they are in this context. Raises AssertionError with Adasum."""
        if self._distributed.options.op is ReduceOp.ADASUM:
            raise AssertionError(
                f"{describe_call('skip_synchronize')}: not supported with op=hvd.Adasum, which combines the ranks' "
                "updates after the step."
            )
        self._distributed.synchronization = Synchronization.SKIPPED
        try:
            yield
        finally:
            self._distributed.synchronization = Synchronization.BY_STEP

    def set_backward_passes_per_step(self, passes: int | None) -> None:
        """Change how many backward passes make a step, from the next step on.

        Args:
            passes: the number; or None where it is not known beforehand: all ranks make as many passes, and gradients
                are averages after each, but for those in `accumulating`. ``backward_passes_per_step`` is 1 then.

        Raises:
            ValueError: it is below 1; it is None, and `op` is `Sum`: a sum of sums would count gradients twice.
        """
        if passes is not None:
            check_passes(passes)
        elif self._distributed.options.op is ReduceOp.SUM:
            raise ValueError(
                f"{describe_call('DistributedOptimizer')}: set_backward_passes_per_step(None) is not supported with "
                "op=hvd.Sum: a later pass would sum the earlier sums again. Use op=hvd.Average."
            )
        self._distributed.passes = passes or 1
        if self._distributed.exchange is not None:
            self._distributed.exchange.set_passes_per_step(passes)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward passes in this context add to the gradients without sending them; they do not count for the
        step.

        The next pass outside, or else ``step()``, exchanges the sums. All ranks need not make equally many of these
        passes. Not in Horovod.
        """
        exchange = self._distributed.exchange
        if exchange is None:
            yield
            return
        before, exchange.accumulating = exchange.accumulating, True
        try:
            yield
        finally:
            exchange.accumulating = before

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Call the optimizer's own. Raises AssertionError inside a backward pass, while gradients are in flight."""
        exchange = self._distributed.exchange
        if exchange is not None:
            if exchange.in_backward:
                raise AssertionError(
                    "zero_grad() was called during a backward pass, while its gradients are being exchanged."
                )
            exchange.begin_step()  # averages that were not used are discarded, as on ranks without a backward
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load as the optimizer's own; backward passes that were counted for the coming step are forgotten."""
        if self._distributed.exchange is not None:
            self._distributed.exchange.begin_step()
        super().load_state_dict(*args, **kwargs)

    @property
    def bytes_given(self) -> int:
        """Return the bytes of gradients, in the form in which they are sent, that this rank gave to the last exchange;
        0 before it.

        The traffic depends on the collective: up to twice as much for an allreduce, this much from every other rank
        for an allgather.
        """
        return 0 if self._distributed.exchange is None else self._distributed.exchange.bytes_given

    @property
    def op(self) -> int:
        """Return how gradients are reduced."""
        return self._distributed.options.op

    @property
    def backward_passes_per_step(self) -> int:
        """Return how many backward passes make a step."""
        return self._distributed.passes

    @property
    def gradient_predivide_factor(self) -> float:
        """Return f of the average taken as 1/f before and f/size after the sum."""
        return self._distributed.options.predivide

    @property
    def sparse_as_dense(self) -> bool:
        """Return whether sparse gradients are accepted, and are sent as dense ones."""
        return self._distributed.options.sparse_as_dense

    @property
    def process_set(self) -> ProcessSet:
        """Return the process set over whose ranks gradients are reduced."""
        return self._distributed.options.process_set or global_process_set

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reduce it to an optimizer of the user's own class: a copy or a pickle belongs to no job."""
        added = {_ATTRIBUTE, TAKES_SCALE} if self._distributed.options.op is ReduceOp.ADASUM else {_ATTRIBUTE}
        return reduce_to_user_class(self, added)


def find_user_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the class that the user made the optimizer with, wrapped or not."""
    return unwrap_class(optimizer) if isinstance(optimizer, DistributedMethods) else type(optimizer)


def unwrap(optimizer: torch.optim.Optimizer) -> None:
    """Take back an earlier wrapping, as when a notebook cell is run twice; backward passes are the rank's own then."""
    if isinstance(optimizer, DistributedMethods):
        distributed = optimizer._distributed
        for hook in distributed.hooks:
            hook.remove()
        if distributed.exchange is not None:
            distributed.exchange.close()
        optimizer.__class__ = unwrap_class(optimizer)  # type: ignore[assignment]  # which is what it was
        delattr(optimizer, _ATTRIBUTE)


@_disable_dynamo  # where step is compiled, the exchange is not
def _before_step(optimizer: DistributedMethods, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Averages what no backward has averaged; with a closure that is known only after the closure has run."""
    distributed = optimizer._distributed
    exchange = distributed.exchange
    assert exchange is not None
    if distributed.synchronization is Synchronization.CALLED:
        distributed.synchronization = Synchronization.BY_STEP
        warn_about_second_exchange()
    exchange.before_step()
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if callable(closure):
        if isinstance(closure, _AveragedClosure):
            return None  # a step that calls its base class's step: the hooks see it twice
        averaged = _AveragedClosure(closure, optimizer)
        if len(args) > 1:
            return (args[0], averaged, *args[2:]), kwargs
        return args, {**kwargs, "closure": averaged}
    if distributed.synchronization is not Synchronization.SKIPPED:
        exchange.synchronize()
    return None


def _register_after_step(optimizer: torch.optim.Optimizer) -> Any:
    """Register `_after_step` before the hooks that there are: they see what the step has made in the end."""
    hooks = optimizer._optimizer_step_post_hooks
    others = dict(hooks)
    hooks.clear()
    handle = optimizer.register_step_post_hook(_after_step)
    hooks.update(others)
    return handle


@_disable_dynamo  # where step is compiled, the exchange is not
def _after_step(optimizer: DistributedMethods, args: Any, kwargs: Any) -> None:
    progress.count_step()
    exchange = optimizer._distributed.exchange
    assert exchange is not None
    exchange.after_step()


class _AveragedClosure:
    """The user's closure, after which the gradients are averages; a step may call it any number of times."""

    def __init__(self, closure: Callable[[], Any], optimizer: DistributedMethods) -> None:
        self._closure = closure
        self._optimizer = optimizer

    def __call__(self) -> Any:
        distributed = self._optimizer._distributed
        assert distributed.exchange is not None
        skips = distributed.synchronization is Synchronization.SKIPPED
        return distributed.exchange.evaluate(self._closure, synchronize=not skips)
