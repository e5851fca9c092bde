"""A worker's states: every transition, and every event that its state refuses."""

from __future__ import annotations

from itertools import product

import pytest

from spark_estimator.launch.worker.state import TRANSITIONS, WorkerEvent, WorkerState, worker_states
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
    machine = worker_states()
    for event in events:
        machine.fire(event)
    assert machine.state is end


REFUSED = {
    WorkerState.NEW: {WorkerEvent.BEGIN, WorkerEvent.FAIL, WorkerEvent.STOP},
    WorkerState.STARTING: {WorkerEvent.START},
    WorkerState.RUNNING: {WorkerEvent.START, WorkerEvent.BEGIN},
    WorkerState.FAILED: {WorkerEvent.START},
    WorkerState.STOPPED: {WorkerEvent.START},
    WorkerState.ENDED: {WorkerEvent.START, WorkerEvent.BEGIN, WorkerEvent.FAIL, WorkerEvent.STOP},
}


@pytest.mark.parametrize(("state", "event"), list(product(WorkerState, WorkerEvent)))
def test_each_state_refuses_what_it_cannot_meet(state: WorkerState, event: WorkerEvent) -> None:
    machine = StateMachine(state, TRANSITIONS)
    if event in REFUSED[state]:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {state.name}"):
            machine.fire(event)
        assert machine.state is state
    else:
        machine.fire(event)
        assert machine.state is not WorkerState.NEW


def test_a_worker_that_has_failed_or_was_stopped_is_never_the_other() -> None:
    for event in WorkerEvent:
        assert TRANSITIONS.get((WorkerState.FAILED, event)) not in (WorkerState.STOPPED, WorkerState.RUNNING)
        assert TRANSITIONS.get((WorkerState.STOPPED, event)) not in (WorkerState.FAILED, WorkerState.RUNNING)
