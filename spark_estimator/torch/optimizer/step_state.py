"""The states of one optimizer step, from its first backward pass to the use of the averaged gradients, in one table.

A step usually passes through four of them::

    IDLE --begin--> BACKWARD --complete--> COMPLETE --exchanged--> AVERAGED --step--> IDLE
      ^                |
      +-----end--------+   (a pass that is not the step's last one)

``SUSPENDED`` is for a backward inside another one's autograd function or hook. The two states whose names end in
``INSIDE`` are for ``step()`` or ``synchronize()`` called by a hook in the middle of a pass. Such a step is the only one
of its pass: no exchange follows at the end, and the gradients that the rest of the pass adds belong to the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from spark_estimator.errors import SparkEstimatorError
from spark_estimator.state_machine import IllegalTransitionError, StateMachine


class StepState(Enum):
    """The state of a step."""

    IDLE = "No backward pass is running, and the gradients of this step have not been exchanged."
    BACKWARD = "A backward pass is running; autograd reports its end, or drops the report if the pass raises."
    SUSPENDED = "A backward inside another one has ended, and the outer one continues; no report comes if that raises."
    COMPLETE = "The step's last pass has ended; the exchange waits until all optimizers of the pass have submitted."
    AVERAGED = "No backward pass is running, and the gradients are averages."
    AVERAGED_INSIDE = "The gradients were exchanged in the middle of a pass, which is still running."
    STEPPED_INSIDE = "As AVERAGED_INSIDE, and a step has used those averages, or the exchange has failed."


class StepEvent(Enum):
    """The events that change the state."""

    BEGIN = "A backward pass has reached its first parameter."
    SUSPEND = "A backward inside another one has ended."
    RESUME = "The outer backward has come to a parameter, or to the end of the node in which the inner one ran."
    END = "A pass has ended that is not the step's last one."
    COMPLETE = "The step's last pass has ended."
    WRITTEN = "A gradient has been written after an exchange in the middle of the pass."
    RAISE = "A pass has raised."
    EXCHANGED = "All gradients have become averages."
    FAIL = "The exchange has raised."
    STEP = "The averages have been used or given up: the next step begins."


def _make_table() -> dict[tuple[StepState, StepEvent], StepState]:
    idle, backward, suspended = StepState.IDLE, StepState.BACKWARD, StepState.SUSPENDED
    complete, averaged = StepState.COMPLETE, StepState.AVERAGED
    averaged_inside, stepped_inside = StepState.AVERAGED_INSIDE, StepState.STEPPED_INSIDE
    event = StepEvent
    return {
        (idle, event.BEGIN): backward,
        (idle, event.RAISE): idle,  # a late report: the pass was already known to be lost
        (idle, event.EXCHANGED): averaged,  # by step() or synchronize(), with or without a backward
        (idle, event.FAIL): idle,
        (idle, event.STEP): idle,
        # A pass.
        (backward, event.SUSPEND): suspended,
        (backward, event.END): idle,
        (backward, event.COMPLETE): complete,
        (backward, event.RAISE): idle,
        (backward, event.EXCHANGED): averaged_inside,
        (backward, event.FAIL): stepped_inside,
        (backward, event.STEP): backward,
        # Between two parts of a pass.
        (suspended, event.RESUME): backward,
        (suspended, event.RAISE): idle,
        (suspended, event.EXCHANGED): averaged,  # the outer pass has ended without reaching another parameter
        (suspended, event.FAIL): idle,
        (suspended, event.STEP): suspended,
        # Between the end of the last pass and its exchange.
        (complete, event.RAISE): idle,
        (complete, event.EXCHANGED): averaged,
        (complete, event.FAIL): idle,
        (complete, event.STEP): complete,
        # After the exchange.
        (averaged, event.BEGIN): backward,  # another pass of the same step, after synchronize()
        (averaged, event.RAISE): averaged,
        (averaged, event.EXCHANGED): averaged,  # at the end of a pass, after another optimizer's exchange has stepped
        (averaged, event.FAIL): averaged,
        (averaged, event.STEP): idle,
        # The rest of a pass after a hook has called synchronize(), and perhaps step(), in the middle of it.
        (averaged_inside, event.WRITTEN): backward,
        (averaged_inside, event.SUSPEND): averaged,
        (averaged_inside, event.END): averaged,
        (averaged_inside, event.COMPLETE): complete,
        (averaged_inside, event.RAISE): averaged,
        (averaged_inside, event.STEP): stepped_inside,
        (stepped_inside, event.SUSPEND): idle,
        (stepped_inside, event.END): idle,
        (stepped_inside, event.RAISE): idle,
        (stepped_inside, event.EXCHANGED): averaged_inside,
        (stepped_inside, event.FAIL): stepped_inside,
        (stepped_inside, event.STEP): stepped_inside,
    }


#: All changes of state that there are: the state before, and what happened -> the state after.
TRANSITIONS = _make_table()

#: A pass is running whose end autograd will report.
LISTENING = frozenset({StepState.BACKWARD, StepState.AVERAGED_INSIDE, StepState.STEPPED_INSIDE})

#: Gradients of a pass may be in flight.
IN_BACKWARD = frozenset({StepState.BACKWARD, StepState.SUSPENDED, StepState.COMPLETE})

#: This step's exchange has taken place.
EXCHANGED = frozenset({StepState.AVERAGED, StepState.AVERAGED_INSIDE})


class PassKind(Enum):
    """The role of a backward pass in its step."""

    EARLIER = "More passes of the step follow."
    LAST = "The gradients are exchanged when it ends."
    UNCOUNTED = "It began while passes only accumulate: it is no pass of the step."


class StepProgress:
    """The state of the present step, and how many of its backward passes have ended.

    Args:
        passes_per_step: N >= 1; None: every pass is the last one, and may be followed by another last one.

    Attributes:
        passes: backward passes that have ended since the last step.
        accumulating: passes that begin now are not counted.
    """

    def __init__(self, passes_per_step: int | None) -> None:
        self.passes = 0
        self.accumulating = False
        self._states = StateMachine(StepState.IDLE, TRANSITIONS)
        self._passes_per_step = passes_per_step

    @property
    def state(self) -> StepState:
        """Return the present state, which `apply` changes."""
        return self._states.state

    @property
    def is_open_ended(self) -> bool:
        """Return whether every pass is the last one, and may be followed by more."""
        return self._passes_per_step is None

    @property
    def passes_per_step(self) -> int:
        """Return N >= 1: the pass with this number is the step's last one."""
        return self._passes_per_step or 1

    def apply(self, event: StepEvent) -> None:
        """Change to the next state. Raises SparkEstimatorError: the event cannot happen in this one, a defect here."""
        try:
            self._states.fire(event)
        except IllegalTransitionError as error:
            raise SparkEstimatorError(
                f"Internal error: DistributedOptimizer cannot handle the event {error}. Please report it, with the "
                "code that calls backward() and step()."
            ) from None

    def set_passes_per_step(self, passes: int | None) -> None:
        """Change N."""
        self._passes_per_step = passes

    def begin_step(self) -> None:
        """Begin the next step, when the averages have been used or discarded."""
        self.passes = 0
        self.apply(StepEvent.STEP)

    def step_is_over(self, averages_are_gone: Callable[[], bool]) -> bool:
        """Return whether a pass that begins now is the next step's, without step() or zero_grad() before it."""
        return self.passes >= self.passes_per_step and (self.is_open_ended or averages_are_gone())

    def begin_further_passes(self) -> None:
        """Begin a pass over parameters that the exchanges of this step have left out: they have N passes."""
        if self.passes >= self.passes_per_step:
            self.passes = 0

    def check_pass(self) -> None:
        """Raise AssertionError when the step has had all of its passes."""
        if self.passes >= self.passes_per_step:
            raise AssertionError(
                f"backward() was called more than backward_passes_per_step={self.passes_per_step} times before "
                "step(). Call step() or zero_grad() on the optimizer in between (also where a GradScaler may have "
                "skipped the step), or raise backward_passes_per_step: it counts calls of backward(). A further one "
                "may only reach parameters that no rank has reached in this step."
            )

    def choose_pass_kind(self) -> PassKind:
        """Return the role of a pass that begins now in its step."""
        if self.accumulating:
            return PassKind.UNCOUNTED
        return PassKind.LAST if self.passes + 1 == self.passes_per_step else PassKind.EARLIER

    def end_pass(self, kind: PassKind) -> bool:
        """End a pass that is a part of no other one. Returns whether its gradients are exchanged now."""
        stepped = self.state is StepState.STEPPED_INSIDE  # the pass belongs to that step, which has ended
        if kind is PassKind.LAST and not stepped:
            self.apply(StepEvent.COMPLETE)
            return True
        self.passes += kind is PassKind.EARLIER and not stepped
        self.apply(StepEvent.END)
        return False
