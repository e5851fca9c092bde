"""The states of a run on Spark: every transition, and every event that its state refuses."""

from __future__ import annotations

from itertools import product

import pytest

from spark_estimator.launch.spark.run_state import TRANSITIONS, RunEvent, RunState
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
    machine = StateMachine(RunState.RUNNING, TRANSITIONS)
    for event in events:
        machine.fire(event)
    assert machine.state is end


#: What each state allows: the name of each event, and of the state that follows.
ALLOWED = {
    "RUNNING": "STOP STOPPING, SPARK_ERROR ENDED_BY_SPARK, CLOSE CLOSED",
    "STOPPING": "STOP STOPPING, SPARK_ERROR STOPPING, CLOSE CLOSED_AFTER_STOP",
    "ENDED_BY_SPARK": "STOP ENDED_BY_SPARK, CLOSE CLOSED",
    "CLOSED": "SPARK_ERROR CLOSED",
    "CLOSED_AFTER_STOP": "SPARK_ERROR CLOSED_AFTER_STOP",
}


@pytest.mark.parametrize(("state", "event"), list(product(RunState, RunEvent)))
def test_each_event_in_each_state(state: RunState, event: RunEvent) -> None:
    machine = StateMachine(state, TRANSITIONS)
    after = dict(pair.split() for pair in ALLOWED[state.name].split(", ")).get(event.name)
    if after is None:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {state.name}"):
            machine.fire(event)
        after = state.name
    else:
        machine.fire(event)
    assert machine.state is RunState[after]
