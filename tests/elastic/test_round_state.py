"""The phases of a round: each event in each phase, and what the planner asks its table of processes."""

from __future__ import annotations

import itertools

import pytest

from spark_estimator.elastic.round_state import (
    AT_WORK,
    BROKEN,
    GATHERING,
    MEMBERS,
    NEWCOMERS,
    READY,
    TRANSITIONS,
    ElasticProcess,
    ProcessPhase,
    ProcessTable,
    RoundEvent,
    RoundPhase,
)
from spark_estimator.state_machine import IllegalTransitionError, StateMachine

#: What each phase allows: the name of each event, and of the phase that follows.
ALLOWED = {
    "WHOLE": "ANNOUNCE ANNOUNCED, LOSE BROKEN, GATHER GATHERING, END ENDED",
    "ANNOUNCED": "LOSE BROKEN_ANNOUNCED, GATHER GATHERING_AS_ANNOUNCED, END ENDED",
    "BROKEN": "ANNOUNCE BROKEN_ANNOUNCED, LOSE BROKEN, GATHER GATHERING, END ENDED",
    "BROKEN_ANNOUNCED": "LOSE BROKEN_ANNOUNCED, GATHER GATHERING, END ENDED",
    "GATHERING": "LOSE GATHERING, GATHER GATHERING, BEGIN WHOLE, END ENDED",
    "GATHERING_AS_ANNOUNCED": "LOSE GATHERING, GATHER GATHERING_AS_ANNOUNCED, BEGIN WHOLE, END ENDED",
    "ENDED": "LOSE ENDED, GATHER ENDED",
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(RoundPhase, RoundEvent)))
def test_each_event_in_each_phase(phase: RoundPhase, event: RoundEvent) -> None:
    machine = StateMachine(phase, TRANSITIONS)
    after = dict(pair.split() for pair in ALLOWED[phase.name].split(", ")).get(event.name)
    assert machine.allows(event) == (after is not None)
    if after is None:
        with pytest.raises(IllegalTransitionError, match=f"{event.name} in state {phase.name}"):
            machine.fire(event)
        after = phase.name
    else:
        machine.fire(event)
    assert machine.state is RoundPhase[after]


def test_groups_of_phases() -> None:
    assert {phase.name for phase in RoundPhase} == ALLOWED.keys(), "no two phases have the same text"
    for phase in RoundPhase:
        assert (phase in GATHERING) == ((phase, RoundEvent.BEGIN) in TRANSITIONS)
    assert set(RoundPhase) - BROKEN == {RoundPhase.WHOLE, RoundPhase.ANNOUNCED, RoundPhase.ENDED}
    assert set(ProcessPhase) == MEMBERS | NEWCOMERS and not MEMBERS & NEWCOMERS and MEMBERS - AT_WORK == READY


def make_processes(*ranks: int) -> ProcessTable:
    """Return processes 10, 11 ... with these ranks; -1: a newcomer."""
    phases = [ProcessPhase.READY if rank >= 0 else ProcessPhase.WAITING for rank in ranks]
    return ProcessTable(
        {
            number: ElasticProcess(phase, rank, holds_state=rank >= 0)
            for number, (phase, rank) in enumerate(zip(phases, ranks, strict=True), 10)
        }
    )


def test_processes_are_selected_by_phase_and_slot() -> None:
    processes = make_processes(0, 1, -1)
    processes[11].unwanted_since = 0.0
    assert processes.select(MEMBERS) == [10, 11]
    assert processes.select(MEMBERS, unwanted=True) == [11]
    assert processes.select(MEMBERS | NEWCOMERS, unwanted=False) == [10, 12]
    assert processes.select(AT_WORK) == []


def test_members_come_in_the_order_of_their_ranks_before_newcomers() -> None:
    processes = make_processes(2, -1, 0, -1, 1)
    assert sorted(processes, key=processes.get_order) == [12, 14, 10, 11, 13]
    processes[12].holds_state = False
    assert sorted(processes, key=processes.get_next_order) == [14, 10, 12, 11, 13]


@pytest.mark.parametrize(
    ("ranks", "numbers", "kept"),
    [
        ((0, 1, 2), [10, 11, 12], [10, 11, 12]),
        ((1, 2, -1), [10, 11, 12], [12, 10, 11]),
        ((0, 2, 3), [10, 11, 12], [10, 12, 11]),
        ((0, 3, -1), [10, 11, 12], [10, 11, 12]),
        ((3,), [10], [10]),
    ],
)
def test_ranks_that_still_exist_are_kept(ranks: tuple[int, ...], numbers: list[int], kept: list[int]) -> None:
    assert make_processes(*ranks).keep_ranks(numbers) == kept
