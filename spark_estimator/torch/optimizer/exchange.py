"""Averages an optimizer's gradients over the ranks while autograd is still computing the others.

One *exchange* belongs to one ``step()``: in it every rank submits every bucket exactly once, also those for which the
rank's backward has computed nothing. Because of that rule, ranks stay in step even if some leave parameters unused,
have no backward in a step, or raise in the middle of it.

A step with N backward passes::

    pass 1 .. N-1   hooks count the pass, gradients add up where autograd puts them
    pass N          a hook notes each gradient; a bucket that has all of its gradients is submitted at once
    end of pass N   submits the rest (zeros for what has no gradient), waits, puts the averages in place
    step()          exchanges only if no backward did; then counting starts again

So everything that the user does between backward and step (clipping, unscaling, logging) sees averaged gradients.
A hook that calls ``step()`` in the middle of a pass exchanges what has been written until then; then the end of the
pass exchanges nothing, and what the pass has added since waits for the next step.
`step_state` has the states of a step in one table.

Parameters that no rank has reached in these N passes may be reached by further ones, N again, before ``step()``; see
`remainder`.

Where the last pass of a step is not known beforehand, N is one, passes that begin while ``accumulating``
count for nothing, and each of the others may be followed by more: the average over ranks of (an earlier average plus a
rank's later additions) equals the average of everything that was added.

A parameter that several optimizers have is exchanged by the one that was made last; the others step with what that one
has made of the gradient.

A backward inside another one (a reentrant checkpoint, an autograd function or a hook that calls ``backward``) is part
of it: the pass ends when the outermost has ended. A model whose parameters get gradients from several of these shows
that in the first exchange, which sends nothing before the end; from then on its buckets wait for the end, too.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.hooks import (
    EndOfBackward,
    InnerPass,
    ParameterHooks,
    call_after,
    call_at_the_end,
    find_enclosing_node,
    is_inside_backward,
)
from spark_estimator.torch.optimizer.membership import JobMembership
from spark_estimator.torch.optimizer.plan import GradientPlan
from spark_estimator.torch.optimizer.remainder import RemainderPlan
from spark_estimator.torch.optimizer.shared_memory import note_gradients
from spark_estimator.torch.optimizer.step_state import (
    EXCHANGED,
    IN_BACKWARD,
    LISTENING,
    PassKind,
    StepEvent,
    StepProgress,
    StepState,
)

_BACKWARD = StepState.BACKWARD  # asked for every gradient: an attribute of an enum takes several times as long


@dataclass
class _BackwardPass:
    """A backward pass, with those inside it.

    Attributes:
        kind: what it is to its step.
        submits_early: a bucket is submitted when its gradients are complete. Else all are at the end of the pass: a
            user's hook may run after this one, or may change other gradients, too.
        is_retry: an earlier try of it has raised, and had submitted buckets: those count.
        inner: the last backward inside it that has ended.
    """

    kind: PassKind
    submits_early: bool = True
    is_retry: bool = False
    inner: InnerPass | None = None


#: All that have not been closed.
_live: weakref.WeakSet[GradientExchange] = weakref.WeakSet()


def note_new_optimizer() -> None:
    """Have the optimizers of this process compare again whether each is the only one; all ranks make one more."""
    for exchange in list(_live):
        exchange._is_alone = exchange._remainder = None


class GradientExchange:
    """Listens to the parameters of one optimizer and exchanges their gradients.

    Args:
        optimizer: whose parameters; also those that are added or made trainable later.
        names: parameter id -> name, for messages; parameters without one are named by group and position.
        passes: backward passes per step, N >= 1.
        options: how to exchange.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str], passes: int, options: Options) -> None:
        self._progress = StepProgress(passes)
        self._pass = _BackwardPass(PassKind.EARLIER)  # the present one, or the one before
        self._hooks = ParameterHooks(self)
        self._lock = threading.Lock()
        # One parameter with its last average: the average is missing if the user has cleared the gradients.
        self._averaged: tuple[torch.Tensor, weakref.ref[torch.Tensor]] | None = None
        # The parameter whose hook called for the last exchange: its gradient was written before.
        self._exchanged_in_hook_of: int | None = None
        self._membership = JobMembership(optimizer, names, options, self._hooks, passes)
        self._remainder: RemainderPlan | None = None  # of what may still be exchanged in this step
        self._is_alone: bool | None = None  # the job has no other optimizer; None: the ranks have not compared that
        _live.add(self)

    # --- what the optimizer calls ---

    @property
    def accumulating(self) -> bool:
        """Return whether passes that begin now only add to gradients, and are not counted."""
        return self._progress.accumulating

    @accumulating.setter
    def accumulating(self, value: bool) -> None:
        self._progress.accumulating = value

    @property
    def exchanges(self) -> int:
        """Return how many exchanges there were in the present job."""
        return self._membership.exchanges

    @property
    def in_backward(self) -> bool:
        """Return whether a backward pass is running, so that gradients may be in flight."""
        if self._progress.state in IN_BACKWARD and not is_inside_backward():
            self.note_backward_raised()  # not reported: an inner pass had ended, and the outer one raised
        return self._progress.state in IN_BACKWARD

    @property
    def bytes_given(self) -> int:
        """Return the bytes that this rank handed to the engine in the last exchange; 0 before the first."""
        return sum(bucket.bytes_given for bucket in self._membership.plan.buckets)

    def synchronize(self) -> None:
        """Exchanges what has not been exchanged in this step; returns when all gradients are averages. Collective."""
        key = self._hooks.find_running()
        if key is not None:
            self._note_written(key)  # the user's hook may run before this one
        if self._exchanged and self._averages_are_gone() and not self._has_gradients():
            self.begin_step()  # a step was given up: the other ranks may have averaged others since, for this one
        if not self._exchanged:
            self._refresh()
            self._note_gradients()
        for newer in self._list_newer():
            membership = newer._membership  # if it has exchanged since the last step, that exchange is this step's
            if membership.exchanges == self._membership.exchanges_of_newer.get(membership.name, 0):
                newer.synchronize()
            newer._exchange_remainder()
        if not self._exchanged:
            self._exchange()
        self._exchange_remainder()

    def forget_passes(self) -> None:
        """Count backward passes from 0 again: their gradients have been used or discarded."""
        self._progress.passes = 0

    def set_passes_per_step(self, passes: int | None) -> None:
        """Change N, from the step that begins now; None: each pass is the last one, and may be followed by more."""
        self._progress.set_passes_per_step(passes)
        self.begin_step()

    def begin_step(self) -> None:
        """Begin the next step, as the averages have been used: the next exchange is that step's."""
        self._progress.begin_step()
        self._remainder = None
        newer = [exchange._membership for exchange in self._list_newer()]
        self._membership.exchanges_of_newer = {membership.name: membership.exchanges for membership in newer}

    def before_step(self) -> None:
        """Do nothing before the optimizer steps."""

    #: The step has used the gradients.
    after_step = begin_step

    def evaluate(self, closure: Callable[[], Any], *, synchronize: bool) -> Any:
        """Return the result of a step's closure, with averaged gradients afterwards, if requested. Collective."""
        self.begin_step()
        loss = closure()
        if synchronize:
            self.synchronize()
        return loss

    def close(self) -> None:
        """Listen no more."""
        _live.discard(self)
        self._membership.leave()

    # --- what autograd calls ---

    def note_gradient_complete(self, key: int) -> None:
        """Note that a parameter's gradient is complete for this pass; see ``hooks.Listener``."""
        state = self._progress.state
        if state is not _BACKWARD:
            self._note_written(key)
            if state not in LISTENING and self._hooks.counting[0]:
                missing = self._membership.plan.bucket_of[key].missing
                if key not in missing:
                    self.note_gradient_again(key)
                    return
                missing.discard(key)
        if self._hooks.counting[0]:
            plan = self._membership.plan
            bucket = plan.bucket_of[key]
            if not bucket.missing and plan.agreed and not plan.repeats and self._pass.submits_early:
                bucket.submit()
        elif self._remainder is not None:
            self._remainder.check_reached(key)

    def note_gradient_again(self, key: int) -> None:
        """Note that a gradient that was complete in this pass has got more; see ``hooks.Listener``."""
        bucket = self._membership.plan.bucket_of[key]
        if not bucket.submitted:
            self._membership.plan.repeats = True
        elif not self._pass.is_retry:  # else the earlier attempt of this step, whose backward raised, counts
            self._membership.interrupted_by = AssertionError.__name__
            name = next(slot.name for slot in bucket.slots if id(slot.param) == key)
            raise AssertionError(
                f"The gradient of {name} was already sent to the other ranks when a nested backward() added to it "
                "again, which did not happen in the first step. Make the first step use every parameter as often as "
                "later steps do, or use torch.utils.checkpoint with use_reentrant=False. If an earlier backward() of "
                "this step raised, call zero_grad() on the optimizer before it is tried again."
            )

    def note_backward_ended(self) -> None:
        """Note that the pass is over."""
        self._hooks.counting[0] = False
        outer = find_enclosing_node()
        if outer is not None:
            self._progress.apply(StepEvent.SUSPEND)
            self._pass.inner = InnerPass(outer)
            # If the outer pass raises from here on, it is not reported. A second attempt then adds to these gradients,
            # and must not use the memory that the engine works on.
            self._plan.detach_submitted()
            call_after(outer, self._resume)
            return
        if self._progress.end_pass(self._pass.kind):
            # Every optimizer that this pass has reached has submitted before one waits: another rank's pass may have
            # reached some of them only, and that rank waits for those first.
            call_at_the_end(self._end_last_pass)
            if self._plan.agreed:
                self._plan.submit()

    def note_backward_raised(self) -> None:
        """Note that the pass died. What was submitted counts, as other ranks count on it; the rest never happened."""
        self._hooks.counting[0] = False
        self._progress.apply(StepEvent.RAISE)
        plan = self._plan
        self._membership.interrupted_by = plan.interrupted_by or self._membership.interrupted_by
        plan.detach_submitted()
        plan.forget_unsubmitted()

    def _note_written(self, key: int) -> None:
        """Note that the current pass has written the gradient of a parameter."""
        with self._lock:  # autograd has a thread for each device
            state = self._progress.state
            if state not in LISTENING:
                self._begin_pass(key)
            elif state is StepState.AVERAGED_INSIDE and key != self._exchanged_in_hook_of:
                self._progress.apply(StepEvent.WRITTEN)

    def _begin_pass(self, key: int) -> None:
        if self._progress.state in IN_BACKWARD and not self._continues():
            self.note_backward_raised()  # the pass before raised, and was not reported
        if self._progress.state is StepState.SUSPENDED:
            self._listen(StepEvent.RESUME)
            return
        if self._progress.step_is_over(self._averages_are_gone):
            self.begin_step()
        if self._remainder is not None and key in self._remainder.bucket_of:
            self._progress.begin_further_passes()
        self._progress.check_pass()
        self._refresh()
        submits_early = not self._hooks.stand_last()
        self._pass = _BackwardPass(self._progress.choose_pass_kind(), submits_early, self._plan.in_flight)
        if self._pass.kind is PassKind.LAST:
            self._note_gradients(key)
        self._listen(StepEvent.BEGIN)

    def _continues(self) -> bool:
        """Return whether the backward that has reached a parameter is a part of the current pass."""
        inner = self._pass.inner
        return self._progress.state is StepState.SUSPENDED and inner is not None and inner.is_in_this_pass()

    def _listen(self, event: StepEvent) -> None:
        EndOfBackward(self)
        self._progress.apply(event)
        self._hooks.counting[0] = self._pass.kind is PassKind.LAST and self._remainder is None

    def _resume(self) -> None:
        """Continue the outer backward, after one inside it is over."""
        if self._progress.state is StepState.SUSPENDED:  # not when the inner one was followed by a step
            self._listen(StepEvent.RESUME)

    def _end_last_pass(self) -> None:
        self._progress.passes += 1
        self._exchange()

    # --- the exchange ---

    @property
    def _exchanged(self) -> bool:
        """Return whether this step's exchange has taken place."""
        return self._progress.state in EXCHANGED

    @property
    def _plan(self) -> GradientPlan:
        """Return the plan of the step's next exchange."""
        return self._membership.plan if self._remainder is None else self._remainder

    def _refresh(self) -> None:
        """Make a new plan where that is needed. Raise AssertionError between two exchanges of one step."""
        self._membership.refresh(self._progress.passes_per_step)
        if self._remainder is not None and self._remainder.whole is not self._membership.plan:
            self._remainder = None
            self._progress.passes = self._progress.passes_per_step
            raise AssertionError(
                "The optimizer's parameters have changed between two backward passes of one step, of which the first "
                "has exchanged gradients. Call step() or zero_grad() on the optimizer before parameters are added, "
                "frozen or unfrozen."
            )

    def _exchange(self) -> None:
        event = StepEvent.FAIL
        try:
            self._exchange_by_plan()
            event = StepEvent.EXCHANGED
            self._remember_an_average()
        finally:
            self._progress.apply(event)
            self._exchanged_in_hook_of = self._hooks.find_running()
            self._hooks.counting[0] = False  # the rest of this pass, if there is one, submits nothing early

    def _exchange_remainder(self) -> None:
        """Take part in exchanges of what other ranks' further passes have reached, until none has any. Collective."""
        while self._remainder is not None:
            self._exchange_by_plan()

    @torch.no_grad()
    def _exchange_by_plan(self) -> None:
        membership, plan = self._membership, self._plan
        remainder, self._remainder = self._remainder, None
        if not plan.agreed:
            self._is_alone = None
        try:
            unused = plan.exchange(membership.listen)
            membership.exchanges += remainder is None
            if unused and not self._progress.is_open_ended and self._is_only_optimizer():
                self._remainder = RemainderPlan.of(plan, unused)
        except HorovodInternalError:
            raise  # as every later exchange will, unless the ranks have only disagreed
        except BaseException as error:  # Ctrl-C while it waited, for one
            if plan.in_flight:
                membership.interrupted_by = type(error).__name__
            raise
        finally:
            plan.forget()

    def _is_only_optimizer(self) -> bool:
        """Return whether no rank has another optimizer: a step of this one may then wait for passes of other ranks.

        With others a rank would wait here for one that waits for it in another optimizer's exchange. Collective where
        the ranks have not compared it yet.
        """
        if self._is_alone is None:
            gc.collect()  # an optimizer that the user has dropped may be part of a cycle
            others = [other for other in _live if other is not self and other._membership.has_optimizer]
            self._is_alone = not self._membership.is_true_on_a_rank("others", bool(others))
        return self._is_alone

    def _remember_an_average(self) -> None:
        averages = ((param, param.grad) for param in self._membership.iterate_trainable())
        self._averaged = next(((param, weakref.ref(grad)) for param, grad in averages if grad is not None), None)

    def _averages_are_gone(self) -> bool:
        """Return whether the user has cleared the averages by the model, as after a step that was skipped."""
        if self._averaged is None:
            return False
        param, average = self._averaged
        return average() is None or param.grad is not average()

    def _has_gradients(self) -> bool:
        return any(param.grad is not None for param in self._membership.iterate_trainable())

    def _note_gradients(self, first: int | None = None) -> None:
        """Find out which gradients share memory: those must not be in flight while autograd is at work."""
        if self._remainder is not None:
            return  # nothing is in flight before the end of the pass, and gradients that share memory are copied
        slots = self._membership.plan.slots
        if note_gradients(slots, self._membership.list_others_trainable, first):
            self._pass.submits_early = False

    def _list_newer(self) -> list[GradientExchange]:
        """Return the exchanges of optimizers that were made later and exchange parameters of this one, too."""
        if not self._hooks.gave_away:  # the usual case, asked in every step
            return []
        listeners = self._hooks.list_newer(self._membership.list_trainable())
        return [listener for listener in listeners if isinstance(listener, GradientExchange)]
