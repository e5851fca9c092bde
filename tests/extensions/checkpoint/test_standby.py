"""What becomes of the next copy: each event in each state, and the time that copies on standby may take."""

from __future__ import annotations

import itertools

import pytest

from spark_estimator.extensions.checkpoint.standby import OWED, TRANSITIONS, WAITS, Standby, StandbyEvent, StandbyState
from spark_estimator.state_machine import IllegalTransitionError, StateMachine

#: What each state allows: the name of each event, and of the state that follows.
ALLOWED = {
    "FREE": "WRITE WRITING, END FREE",
    "WRITING": "WRITE WRITING, HOLD STANDBY, LEAVE_OUT MISSED, END FREE",
    "STANDBY": "WRITE WRITING, HOLD STANDBY, LEAVE_OUT LEFT_OUT, BEGIN WRITING",
    "LEFT_OUT": "WRITE WRITING, HOLD STANDBY, LEAVE_OUT LEFT_OUT, BEGIN MISSED",
    "MISSED": "WRITE WRITING, HOLD STANDBY, LEAVE_OUT MISSED, END MISSED",
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StandbyState, StandbyEvent)))
def test_each_event_in_each_state(state: StandbyState, event: StandbyEvent) -> None:
    machine = StateMachine(state, TRANSITIONS)
    after = dict(pair.split() for pair in ALLOWED[state.name].split(", ")).get(event.name)
    if after is None:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {state.name}"):
            machine.fire(event)
        after = state.name
    else:
        machine.fire(event)
    assert machine.state is StandbyState[after]


def test_groups_of_states() -> None:
    assert {state.name for state in StandbyState} == ALLOWED.keys()
    for state in StandbyState:
        assert (state in WAITS) == ((state, StandbyEvent.BEGIN) in TRANSITIONS)
    assert {state.name for state in OWED} == {"LEFT_OUT", "MISSED"}


def decide(standby: Standby, now: int, *, is_free: bool = False, spent: int = 0, may: bool = True) -> str:
    return standby.decide(is_free=is_free, now=now, spent=spent, may_be_left_out=may).name


def test_copies_that_wait_take_a_hundredth_of_the_time() -> None:
    standby = Standby()
    assert decide(standby, 1000, is_free=True) == "WRITING"
    standby.add(1.0)
    assert standby.spent == 0, "a copy that is written at once is the first"
    assert decide(standby, 1000) == "STANDBY"
    standby.add(0.05)
    assert standby.spent == 50
    assert decide(standby, 5999, spent=50) == "LEFT_OUT"
    standby.add(0.05)
    assert standby.spent == 50, "no copy was made"
    assert decide(standby, 5999, spent=50, may=False) == "STANDBY"
    assert decide(standby, 6000, spent=50) == "STANDBY"
    assert decide(standby, 9000, spent=99, is_free=True) == "WRITING"
    assert standby.spent == 0 and decide(standby, 9000) == "STANDBY", "counted from the copy that is written"
