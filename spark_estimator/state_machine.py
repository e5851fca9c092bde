"""State machines of this package: an enum of states, an enum of events, and one table of the legal transitions."""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from typing import Generic, TypeVar

_State = TypeVar("_State", bound=enum.Enum)
_Event = TypeVar("_Event", bound=enum.Enum)


class IllegalTransitionError(ValueError):
    """An event that the present state doesn't allow."""


class StateMachine(Generic[_State, _Event]):
    """The present state of one object. Safe to use from several threads.

    Args:
        initial: the first state.
        transitions: (state, event) -> next state; every other pair is illegal.
    """

    def __init__(self, initial: _State, transitions: Mapping[tuple[_State, _Event], _State]) -> None:
        self._state = initial
        self._transitions = transitions
        self._lock = threading.Lock()

    @property
    def state(self) -> _State:
        """Return the present state."""
        return self._state

    def allows(self, event: _Event) -> bool:
        """Return whether the table has a transition of `event` from the present state."""
        return (self._state, event) in self._transitions

    def fire(self, event: _Event) -> bool:
        """Make the transition of `event`. Raises IllegalTransitionError: the table has none from the present state.

        Returns:
            Whether the state has changed.
        """
        with self._lock:
            if (self._state, event) not in self._transitions:
                raise IllegalTransitionError(f"{event.name} in state {self._state.name}")
            before, self._state = self._state, self._transitions[self._state, event]
            return before is not self._state
