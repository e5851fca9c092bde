"""A state machine makes the transitions of its table, and no others."""

from __future__ import annotations

import enum
import threading

import pytest

from spark_estimator.state_machine import IllegalTransitionError, StateMachine


class Door(enum.Enum):
    OPEN = enum.auto()
    SHUT = enum.auto()


class Push(enum.Enum):
    CLOSE = enum.auto()
    LOCK = enum.auto()


def test_only_the_transitions_of_the_table_are_made() -> None:
    door = StateMachine(Door.OPEN, {(Door.OPEN, Push.CLOSE): Door.SHUT, (Door.SHUT, Push.LOCK): Door.SHUT})
    with pytest.raises(IllegalTransitionError, match="LOCK in state OPEN"):
        door.fire(Push.LOCK)
    assert door.state is Door.OPEN
    assert door.allows(Push.CLOSE) and not door.allows(Push.LOCK)
    assert door.fire(Push.CLOSE) and door.state is Door.SHUT
    assert not door.fire(Push.LOCK), "the state is the same"
    with pytest.raises(IllegalTransitionError, match="CLOSE in state SHUT"):
        door.fire(Push.CLOSE)


def test_of_many_threads_one_makes_the_transition() -> None:
    door = StateMachine(Door.OPEN, {(Door.OPEN, Push.CLOSE): Door.SHUT, (Door.SHUT, Push.CLOSE): Door.SHUT})
    start = threading.Barrier(8)
    changed: list[bool] = []

    def push() -> None:
        start.wait()
        changed.append(door.fire(Push.CLOSE))

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(changed) == 1
