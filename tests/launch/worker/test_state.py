"""A worker's states: every transition, and every event that its state refuses."""

from __future__ import annotations

from itertools import product

import pytest

from spark_estimator.launch.worker.state import TRANSITIONS, WorkerEvent, WorkerState
from spark_estimator.state_machine import IllegalTransitionError, StateMachine


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([WorkerEvent.END], WorkerState.ENDED),
        ([WorkerEvent.START, WorkerEvent.END], WorkerState.ENDED),
        ([WorkerEvent.START, WorkerEvent.BEGIN, WorkerEvent.END], WorkerState.ENDED),
        ([WorkerEvent.START, WorkerEvent.FAIL, WorkerEvent.STOP], WorkerState.FAILED),
        ([WorkerEvent.START, WorkerEvent.BEGIN, WorkerEvent.FAIL, WorkerEvent.FAIL], WorkerState.FAILED),
        (
            [WorkerEvent.START, WorkerEvent.STOP, WorkerEvent.BEGIN, WorkerEvent.FAIL, WorkerEvent.STOP],
            WorkerState.STOPPED,
        ),
        ([WorkerEvent.START, WorkerEvent.BEGIN, WorkerEvent.STOP, WorkerEvent.END, WorkerEvent.END], WorkerState.ENDED),
    ],
)
def test_ways_through_the_table(events: list[WorkerEvent], end: WorkerState) -> None:
    machine = StateMachine(WorkerState.NEW, TRANSITIONS)
    for event in events:
        machine.fire(event)
    assert machine.state is end


#: What each state allows: the name of each event, and of the state that follows.
ALLOWED = {
    "NEW": "START STARTING, END ENDED",
    "STARTING": "BEGIN RUNNING, FAIL FAILED, STOP STOPPED, END ENDED",
    "RUNNING": "FAIL FAILED, STOP STOPPED, END ENDED",
    "FAILED": "BEGIN FAILED, FAIL FAILED, STOP FAILED, END ENDED",
    "STOPPED": "BEGIN STOPPED, FAIL STOPPED, STOP STOPPED, END ENDED",
    "ENDED": "END ENDED",
}


@pytest.mark.parametrize(("state", "event"), list(product(WorkerState, WorkerEvent)))
def test_each_event_in_each_state(state: WorkerState, event: WorkerEvent) -> None:
    machine = StateMachine(state, TRANSITIONS)
    after = dict(pair.split() for pair in ALLOWED[state.name].split(", ")).get(event.name)
    if after is None:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {state.name}"):
            machine.fire(event)
        after = state.name
    else:
        machine.fire(event)
    assert machine.state is WorkerState[after]


def test_a_worker_that_has_failed_or_was_stopped_is_never_the_other() -> None:
    for event in WorkerEvent:
        assert TRANSITIONS.get((WorkerState.FAILED, event)) not in (WorkerState.STOPPED, WorkerState.RUNNING)
        assert TRANSITIONS.get((WorkerState.STOPPED, event)) not in (WorkerState.FAILED, WorkerState.RUNNING)
