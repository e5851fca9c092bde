"""The table of a step's states: what each state allows, what it refuses, and how passes are counted."""

from __future__ import annotations

import itertools

import pytest

from spark_estimator.errors import SparkEstimatorError
from spark_estimator.state_machine import StateMachine
from spark_estimator.torch.optimizer.step_state import (
    EXCHANGED,
    IN_BACKWARD,
    LISTENING,
    TRANSITIONS,
    PassKind,
    StepEvent,
    StepProgress,
    StepState,
)

#: What each state allows: the name of each event, and of the state that follows.
ALLOWED = {
    "IDLE": "BEGIN BACKWARD, RAISE IDLE, EXCHANGED AVERAGED, FAIL IDLE, STEP IDLE",
    "BACKWARD": (
        "SUSPEND SUSPENDED, END IDLE, COMPLETE COMPLETE, RAISE IDLE, EXCHANGED AVERAGED_INSIDE, FAIL STEPPED_INSIDE, "
        "STEP BACKWARD"
    ),
    "SUSPENDED": "RESUME BACKWARD, RAISE IDLE, EXCHANGED AVERAGED, FAIL IDLE, STEP SUSPENDED",
    "COMPLETE": "RAISE IDLE, EXCHANGED AVERAGED, FAIL IDLE, STEP COMPLETE",
    "AVERAGED": "BEGIN BACKWARD, RAISE AVERAGED, EXCHANGED AVERAGED, FAIL AVERAGED, STEP IDLE",
    "AVERAGED_INSIDE": (
        "WRITTEN BACKWARD, SUSPEND AVERAGED, END AVERAGED, COMPLETE COMPLETE, RAISE AVERAGED, STEP STEPPED_INSIDE"
    ),
    "STEPPED_INSIDE": (
        "SUSPEND IDLE, END IDLE, RAISE IDLE, EXCHANGED AVERAGED_INSIDE, FAIL STEPPED_INSIDE, STEP STEPPED_INSIDE"
    ),
}
EXPECTED = {
    (state, event): after
    for state, line in ALLOWED.items()
    for event, after in (pair.split() for pair in line.split(", "))
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StepState, StepEvent)))
def test_each_event_in_each_state(state: StepState, event: StepEvent) -> None:
    progress = StepProgress(1)
    progress._states = StateMachine(state, TRANSITIONS)
    after = EXPECTED.get((state.name, event.name))
    if after is not None:
        progress.apply(event)
        assert progress.state is StepState[after]
        return
    with pytest.raises(SparkEstimatorError, match=rf"Internal error: .* event {event.name} in state {state.name}"):
        progress.apply(event)
    assert progress.state is state


def test_every_state_can_be_reached_and_left() -> None:
    reached = {StepState.IDLE}
    for _ in StepState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(StepState)
    for state in StepState:
        assert any(after is not state for (before, _), after in TRANSITIONS.items() if before is state)


def test_groups_of_states() -> None:
    for state in StepState:
        # Autograd reports the end of a pass exactly where the table has events for it.
        assert (state in LISTENING) == ((state, StepEvent.SUSPEND) in TRANSITIONS)
        assert not (state in IN_BACKWARD and state in EXCHANGED)
        # What raises in the middle of a step ends the pass, and leaves averages that there are.
        assert (TRANSITIONS[state, StepEvent.RAISE] is StepState.AVERAGED) == (state in EXCHANGED)
        assert TRANSITIONS[state, StepEvent.STEP] not in EXCHANGED


def run_pass(progress: StepProgress) -> PassKind:
    progress.check_pass()
    kind = progress.choose_pass_kind()
    progress.apply(StepEvent.BEGIN)
    progress.end_pass(kind)
    if kind is PassKind.LAST:
        progress.passes += 1
        progress.apply(StepEvent.EXCHANGED)
    return kind


def test_passes_are_counted() -> None:
    progress = StepProgress(3)
    for _ in range(2):
        kinds = [run_pass(progress) for _ in range(3)]
        assert kinds == [PassKind.EARLIER, PassKind.EARLIER, PassKind.LAST]
        assert progress.state is StepState.AVERAGED
        with pytest.raises(AssertionError, match="more than backward_passes_per_step=3 times"):
            progress.check_pass()
        progress.begin_step()
        assert (progress.state, progress.passes) == (StepState.IDLE, 0)


@pytest.mark.parametrize("passes_per_step", [1, 2])
def test_a_pass_with_a_step_inside_is_not_counted_and_exchanges_nothing_at_its_end(passes_per_step: int) -> None:
    progress = StepProgress(passes_per_step)
    for _ in range(2):
        kind = progress.choose_pass_kind()
        for event in (StepEvent.BEGIN, StepEvent.EXCHANGED):
            progress.apply(event)
        progress.begin_step()
        assert not progress.end_pass(kind)
        assert (progress.state, progress.passes) == (StepState.IDLE, 0)


def test_accumulating_passes_are_not_counted() -> None:
    progress = StepProgress(1)
    progress.accumulating = True
    assert [run_pass(progress) for _ in range(3)] == [PassKind.UNCOUNTED] * 3
    assert (progress.state, progress.passes) == (StepState.IDLE, 0)
    progress.accumulating = False
    assert run_pass(progress) is PassKind.LAST


@pytest.mark.parametrize("gone", [False, True])
def test_a_pass_after_the_last_one_begins_a_step_where_that_is_clear(gone: bool) -> None:
    progress = StepProgress(2)
    assert not progress.step_is_over(lambda: True)
    run_pass(progress)
    assert not progress.step_is_over(lambda: True)
    run_pass(progress)
    assert progress.step_is_over(lambda: gone) == gone
    progress.set_passes_per_step(None)
    assert progress.passes_per_step == 1
    assert progress.step_is_over(lambda: gone)
