"""Averages an optimizer's gradients over the ranks while autograd is still at work on the rest of them.

One *exchange* belongs to one ``step()``: in it every bucket is submitted exactly once by every rank, whatever the
rank's own backward did or did not compute. That rule keeps ranks together that leave parameters unused, that have no
backward at all in a step, or whose backward raised half way.

A step with N backward passes::

    pass 1 .. N-1   hooks count the pass, gradients add up where autograd puts them
    pass N          a hook notes each gradient; a bucket that has all of its own is submitted at once
    end of pass N   submits the rest (zeros for what has no gradient), waits, puts the averages in place
    step()          exchanges only if no backward did; then counting starts again

So everything that the user does between backward and step (clipping, unscaling, logging) sees averaged gradients.

Where nobody knows beforehand which pass of a step is its last one, N is one, `accumulating` marks passes that count for
nothing, and `repeating` lets each of the others be followed by more: the average over ranks of an average and of what a
rank has added to it since is that of all that it has added.

A parameter that several optimizers have is exchanged by the one that was made last, in its way; the others step with
what that one has made of the gradient.

A backward inside another one (a reentrant checkpoint, an autograd function or a hook that calls ``backward``) is part
of it: the pass ends when the outermost has ended. A model whose parameters get gradients from several of these shows
that in the first exchange, which sends nothing before the end; from then on its buckets wait for the end, too.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._compile import _disable_dynamo

from spark_estimator.collectives import context
from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import HorovodInternalError, MismatchError
from spark_estimator.torch.collectives.memory import is_alone, overlapping
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.hooks import (
    EndOfBackward,
    InnerPass,
    ParameterHooks,
    call_after,
    call_at_the_end,
    enclosing_node,
    inside_backward,
)
from spark_estimator.torch.optimizer.plan import GradientPlan
from spark_estimator.torch.optimizer.slot import Slot


class GradientExchange:
    """Listens to the parameters of one optimizer and exchanges their gradients.

    Attributes:
        name: under which all ranks know it in the present job: they number their optimizers as they make them.
        exchanges: how many there were.
        before_backward: called as a backward begins: for what a step that raised has left.
        accumulating: passes that begin now only add to gradients, and are not counted.
        repeating: a pass after the step's last one is another last one.

    Args:
        optimizer: whose parameters; also those that are added or made trainable later.
        names: parameter id -> name, for messages; parameters without one are named by group and position.
        passes: backward passes per step, N >= 1.
        options: how to exchange.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str], passes: int, options: Options) -> None:
        self.passes_per_step = passes
        self._options = options
        self._optimizer = weakref.ref(optimizer)
        self._names = names
        self._hooks = ParameterHooks(self)
        self._lock = threading.Lock()
        self.accumulating = False
        self.repeating = False
        self._passes = 0  # backward passes that have ended since the last step
        self._last = False  # the pass under way, or the one before, is the step's last
        self._uncounted = False  # ... is one that began while `accumulating`
        self._open = False  # a backward pass is under way
        self._armed = False  # ... and we shall be told of its end
        self._inner: InnerPass | None = None  # the last backward inside it that has ended
        self._done = False  # this step's exchange has taken place
        self._repeats = False  # a pass adds to a gradient more than once: it is complete at the end only
        # In this pass a user's hook may come after ours, or what it adds to one gradient it adds to others, too:
        # nothing is sent before the end.
        self._held_back = False
        self.exchanges = 0
        self.before_backward: Callable[[], None] | None = None
        self._seen: dict[str, int] = {}  # newer optimizers' exchanges before this step's
        self._sent_before = False  # by an earlier try of this pass, whose backward raised
        # One parameter with the average that it was given last: gone when the user has cleared the gradients.
        self._averaged: tuple[torch.Tensor, weakref.ref[torch.Tensor]] | None = None
        self._plan = GradientPlan("", [], options, passes)
        self._join_job()
        _in_order.append(weakref.ref(self))
        for param in self._trainable():
            self._hooks.add(param)  # also if another optimizer has it, which is older

    # --- what the optimizer calls ---

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is under way, so that gradients may be in flight."""
        if self._open and not inside_backward():
            self.backward_raised()  # nobody has told: an inner pass had ended, and the outer one raised
        return self._open

    @property
    def bytes_given(self) -> int:
        """Bytes that this rank handed to the engine in the last exchange; 0 before the first."""
        return sum(bucket.bytes_given for bucket in self._plan.buckets)

    def synchronize(self) -> None:
        """Exchanges what has not been exchanged in this step; returns when all gradients are averages. Collective."""
        if self._done and self._averages_are_gone() and all(param.grad is None for param in self._trainable()):
            self.begin_step()  # a step was given up: the other ranks may have averaged others since, for this one
        if not self._done:
            self._refresh()
            self._note_gradients()
        for newer in self._newer():
            if newer.exchanges == self._seen.get(newer.name, 0):  # else what it has exchanged since is this step's
                newer.synchronize()
        if not self._done:
            self._exchange()

    def forget_passes(self) -> None:
        """Counts backward passes anew: their gradients have been used, or given up."""
        self._passes = 0

    def begin_step(self) -> None:
        """What was exchanged has been used: the next exchange is the next step's."""
        self._passes = 0
        self._done = False
        self._seen = {newer.name: newer.exchanges for newer in self._newer()}

    def before_step(self) -> None:
        """The optimizer is about to step; nothing to do."""

    #: The step has used the gradients.
    after_step = begin_step

    def evaluate(self, closure: Callable[[], Any], *, synchronize: bool) -> Any:
        """What a step's closure gives, with gradients that are averages afterwards, if that is wanted. Collective."""
        self.begin_step()
        loss = closure()
        if synchronize:
            self.synchronize()
        return loss

    def close(self) -> None:
        """Listens no more."""
        self._hooks.keep_only(set())
        _in_order[:] = [other for other in _in_order if other() is not self]

    # --- what autograd calls ---

    def gradient_complete(self, key: int) -> None:
        """A parameter's gradient is complete for this pass; see ``backward_hooks.Listener``."""
        if not self._armed:
            with self._lock:  # autograd has a thread for each device
                if not self._armed:
                    self._begin_pass(key)
            if self._hooks.counting[0]:
                missing = self._plan.bucket_of[key].missing
                if key not in missing:
                    self.gradient_again(key)
                    return
                missing.discard(key)
        if self._hooks.counting[0]:
            bucket = self._plan.bucket_of[key]
            if not bucket.missing and self._plan.agreed and not (self._repeats or self._held_back):
                bucket.submit()

    def gradient_again(self, key: int) -> None:
        """A gradient that was complete in this pass has got more; see ``backward_hooks.Listener``."""
        bucket = self._plan.bucket_of[key]
        if not bucket.submitted:
            self._repeats = True
        elif not self._sent_before:  # else the earlier try of this step, whose backward raised, is what counts
            self._cut_short_by = AssertionError.__name__
            name = next(slot.name for slot in bucket.slots if id(slot.param) == key)
            raise AssertionError(
                f"The gradient of {name} had been sent to the other ranks when a backward() inside this backward() "
                "added to it once more, as none did in the first step. Let the first step reach every parameter as "
                "often as later ones do, or use torch.utils.checkpoint with use_reentrant=False. If an earlier "
                "backward() of this step raised, call zero_grad() on the optimizer before it is tried again."
            )

    def backward_ended(self) -> None:
        """The pass is over."""
        self._armed = self._hooks.counting[0] = False
        outer = enclosing_node()
        if outer is not None:
            self._inner = InnerPass(outer)
            # If the outer one raises from here on, nobody tells: what adds to these gradients when it is tried again
            # must not find the memory that the engine works on.
            for bucket in self._plan.buckets:
                if bucket.submitted:
                    bucket.let_go_of_memory()
            call_after(outer, self._resume)
            return
        if not self._last:
            self._open = False
            self._passes += not self._uncounted
            return
        # Every optimizer that this pass has reached has submitted before one waits: another rank's pass may have
        # reached some of them only, and that rank waits for those first.
        call_at_the_end(self._end_of_last_pass)
        if self._plan.agreed:
            for bucket in self._plan.buckets:
                bucket.submit()

    def _end_of_last_pass(self) -> None:
        self._passes += 1
        self._exchange()

    def backward_raised(self) -> None:
        """The pass died. What has been submitted counts, as the other ranks count on it; the rest never happened."""
        self._armed = self._open = self._hooks.counting[0] = False
        self._cut_short_by = next((bucket.torn for bucket in self._plan.buckets if bucket.torn), self._cut_short_by)
        for bucket in self._plan.buckets:
            if bucket.submitted:
                self._sent_before = True
                bucket.let_go_of_memory()
            else:
                bucket.forget()

    def _begin_pass(self, key: int) -> None:
        if self._open and not (self._inner is not None and self._inner.is_of_this_pass()):
            self.backward_raised()  # the pass before raised when nobody was told
        if not self._open:
            if self.before_backward is not None:
                self.before_backward()
            if self._passes >= self.passes_per_step and (self.repeating or self._averages_are_gone()):
                self.begin_step()
            if self._passes >= self.passes_per_step:
                raise AssertionError(
                    f"backward() was called more than backward_passes_per_step={self.passes_per_step} times before "
                    "step(). Call step() or zero_grad() on the optimizer in between (also where a GradScaler may have "
                    "skipped the step), or raise backward_passes_per_step: it counts calls of backward(), whichever "
                    "parameters they reach."
                )
            self._inner = None
            self._refresh()
            self._held_back = self._hooks.stand_last()
            self._uncounted = self.accumulating
            self._last = not self._uncounted and self._passes + 1 == self.passes_per_step
            if self._last:
                self._note_gradients(key)
            self._open = True
            self._done = False
        self._await_the_end()

    def _await_the_end(self) -> None:
        EndOfBackward(self)
        self._armed = True
        self._hooks.counting[0] = self._last

    def _resume(self) -> None:
        """A backward inside another one is over, and the outer one goes on."""
        if self._open and not self._armed:  # not when the inner one was followed by a step
            self._await_the_end()

    @torch.no_grad()
    def _exchange(self) -> None:
        try:
            if not self._plan.agreed and self._plan.agree():
                self._listen()
            for bucket in self._plan.buckets:
                bucket.submit()
            for bucket in self._plan.buckets:
                bucket.proceed()
            for bucket in self._plan.buckets:
                bucket.finish()
            self._done = True
            self.exchanges += 1
            self._remember_an_average()
        except MismatchError:
            self._plan.agreed = False
            raise
        except HorovodInternalError:
            raise  # as every later exchange will
        except BaseException as error:  # Ctrl-C while it waited, for one
            if self._plan.in_flight:
                self._cut_short_by = type(error).__name__
            raise
        finally:
            self._open = self._sent_before = False
            self._plan.forget()

    def _remember_an_average(self) -> None:
        self._averaged = next(
            ((param, weakref.ref(param.grad)) for param in self._trainable() if param.grad is not None), None
        )

    def _averages_are_gone(self) -> bool:
        """Whether the user has given the averages up without a word to the optimizer.

        ``model.zero_grad()`` after a step that a GradScaler skipped, for one.
        """
        if self._averaged is None:
            return False
        param, average = self._averaged
        return average() is None or param.grad is not average()

    # --- the plan ---

    def _join_job(self) -> None:
        """Takes a name in the present job: after another `init()` all ranks number their optimizers anew."""
        self._engine: Engine = self._options.engine()
        self.name = self._options.next_name()
        self._plan.agreed = False
        self._joins = self._engine.joins
        self._seen = {}
        self.exchanges = 0
        self._cut_short_by = ""  # what ended an exchange on this rank that the other ranks may have completed
        self._plan.forget()  # what was sent to an engine that is gone
        self._signature: list[tuple[int, torch.dtype, torch.Size, int]] | None = None

    def _trainable(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        if optimizer is None:
            return []
        return [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]

    def _refresh(self) -> None:
        """Plans anew after an `init()`, and when parameters have come, gone, been moved or got another type."""
        if self._options.engine() is not self._engine:
            if self._options.process_set is None:
                _join_in_order(self._options.engine())
            else:
                self._join_job()
        if self._cut_short_by:
            raise HorovodInternalError(
                f"The last exchange of gradients was cut short on rank {context.rank()} by a {self._cut_short_by}, and "
                "other ranks may have stepped without it: the models may differ. On all ranks call hvd.shutdown() and "
                "hvd.init(), then broadcast_parameters() and broadcast_optimizer_state(), before training goes on."
            )
        if self._joins != self._engine.joins:
            # All ranks have left a join together. One may have had no batch yet, and have agreed to nothing.
            self._joins = self._engine.joins
            self._plan.agreed = False
        params = self._hooks.not_newer(self._trainable())
        signature = [(id(param), param.dtype, param.shape, param.get_device()) for param in params]
        if signature == self._signature or self._plan.in_flight:
            return  # what has been submitted belongs to the old plan: a new one begins with the next step
        slots = [Slot(param, self._name(param)) for param in params]
        self._signature = None
        self._repeats = False
        for param in params:
            self._hooks.add(param)
        self._plan = GradientPlan(self.name, slots, self._options, self.passes_per_step)
        self._listen()
        self._signature = signature  # last: a plan that Ctrl-C has left half made is made again

    def _listen(self) -> None:
        """Has the hooks count the gradients that each bucket of the plan misses."""
        self._hooks.keep_only(set(self._plan.bucket_of))
        for key, bucket in self._plan.bucket_of.items():
            self._hooks.count_in(key, bucket.missing, bucket.note_stream if bucket.place.on_gpu else None)

    def _newer(self) -> list[GradientExchange]:
        """Those of optimizers that were made later and exchange parameters of this one, too."""
        return [newer for newer in self._hooks.newer(self._trainable()) if isinstance(newer, GradientExchange)]

    @_disable_dynamo  # which follows a compiled step into what runs at its graph's breaks
    def _note_gradients(self, first: int | None = None) -> None:
        """Notes the gradients that there are, and which of them lie in memory of others: those must not be in flight.

        Usually there are none, as ``zero_grad`` has taken them away. What autograd puts in their place is looked at
        when it travels.

        Args:
            first: id of the parameter that the pass under way has reached already.
        """
        there = []
        for slot in self._plan.slots:
            gradient = slot.before = slot.param.grad
            if gradient is not None and gradient.layout is torch.strided:
                there.append(gradient)
        if not there or (len(there) == 1 and self._is_new(there[0], first)):
            return
        own = {id(slot.param) for slot in self._plan.slots}
        exchanges = [other for reference in _in_order if (other := reference()) is not None and other is not self]
        others = [param for other in exchanges for param in other._trainable() if id(param) not in own]
        gradients = [param.grad for param in others if param.grad is not None and param.grad.layout is torch.strided]
        overlaps = overlapping([*there, *gradients])
        for slot in self._plan.slots:
            slot.overlapped = id(slot.before) in overlaps
            self._held_back |= slot.overlapped
            gradient = slot.before
            if id(slot.param) != first or gradient is None or gradient.layout is not torch.strided:
                continue
            if not slot.overlapped and not is_alone(gradient):
                # It may be new. It is not where it lies with an old one, as parts of one array do.
                storage = gradient.untyped_storage().data_ptr()
                if all(old is gradient or old.untyped_storage().data_ptr() != storage for old in there):
                    slot.before = None

    def _is_new(self, gradient: torch.Tensor, first: int | None) -> bool:
        """Whether a gradient is the one that the pass has just made, in memory of its own: nearly every pass has that
        one alone, and looks at no other optimizer's parameters."""
        param = next((slot.param for slot in self._plan.slots if id(slot.param) == first), None)
        # Memory that PyTorch has not allocated, as an array's, cannot be resized.
        return (
            param is not None
            and param.grad is gradient
            and is_alone(gradient)
            and gradient.untyped_storage().resizable()
        )

    def _name(self, param: torch.Tensor) -> str:
        name = self._names.get(id(param))
        optimizer = self._optimizer()
        if name is None and optimizer is not None:
            for group_number, group in enumerate(optimizer.param_groups):
                for number, other in enumerate(group["params"]):
                    if other is param:
                        return f"allreduce.noname.{group_number}.{number}"
        return name or "unnamed"


#: All exchanges of this process, in the order in which they were made.
_in_order: list[weakref.ref[GradientExchange]] = []


def _join_in_order(engine: Engine) -> None:
    """Has every exchange of all ranks take its name in a new job, in the order in which they were made.

    A process that has just come to an elastic job numbers its optimizers as it makes them; those that were there before
    must come to the same numbers, whichever of them is used first.
    """
    gc.collect()  # an optimizer that nobody can use any more must not be counted on one rank and not on another
    _in_order[:] = [other for other in _in_order if other() is not None]
    for other in _in_order:
        exchange = other()
        if exchange is not None and exchange._options.process_set is None and exchange._engine is not engine:
            exchange._join_job()
