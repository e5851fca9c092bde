"""The states of a run on Spark: every transition, and every event that its state refuses."""

from __future__ import annotations

from itertools import product

import pytest

from spark_estimator.launch.spark.run_state import TRANSITIONS, RunEvent, RunState, run_states
from spark_estimator.state_machine import IllegalTransitionError, StateMachine


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([RunEvent.CLOSE], RunState.CLOSED),
        ([RunEvent.STOP, RunEvent.SPARK_ERROR, RunEvent.CLOSE], RunState.CLOSED_AFTER_STOP),
        ([RunEvent.STOP, RunEvent.STOP, RunEvent.CLOSE, RunEvent.SPARK_ERROR], RunState.CLOSED_AFTER_STOP),
        ([RunEvent.SPARK_ERROR, RunEvent.CLOSE], RunState.CLOSED),
        # The cancellation of the job in Spark was first: the launcher's later stop is not the cause.
        ([RunEvent.SPARK_ERROR, RunEvent.STOP, RunEvent.CLOSE], RunState.CLOSED),
        ([RunEvent.CLOSE, RunEvent.SPARK_ERROR], RunState.CLOSED),
    ],
)
def test_ways_through_the_table(events: list[RunEvent], end: RunState) -> None:
    machine = run_states()
    for event in events:
        machine.fire(event)
    assert machine.state is end


REFUSED = {
    RunState.RUNNING: set[RunEvent](),
    RunState.STOPPING: set[RunEvent](),
    RunState.ENDED_BY_SPARK: {RunEvent.SPARK_ERROR},
    RunState.CLOSED: {RunEvent.STOP, RunEvent.CLOSE},
    RunState.CLOSED_AFTER_STOP: {RunEvent.STOP, RunEvent.CLOSE},
}


@pytest.mark.parametrize(("state", "event"), list(product(RunState, RunEvent)))
def test_each_state_refuses_what_it_cannot_meet(state: RunState, event: RunEvent) -> None:
    machine = StateMachine(state, TRANSITIONS)
    if event in REFUSED[state]:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {state.name}"):
            machine.fire(event)
    else:
        machine.fire(event)
