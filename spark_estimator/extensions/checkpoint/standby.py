"""`Standby`: whether the next copy of the state is written now, waits for the writers, or is not made.

The writers are FREE, WRITING, or have a copy on STANDBY, too; then one that is due may be LEFT_OUT.
"""

from __future__ import annotations

from enum import Enum, unique

from spark_estimator.state_machine import StateMachine

# Of the time of training: copies that wait for a slow store take no more, but for the first.
_SHARE = 0.01


@unique
class StandbyState(Enum):
    """The last copy; the same on all ranks."""

    FREE = "There is none, or all are complete or have failed."
    WRITING = "It is being written, or was when the ranks last agreed."
    STANDBY = "It waits until the one before is written."
    LEFT_OUT = "The state that was due last was not copied; an earlier copy waits."
    MISSED = "The state that was due last was not copied; no copy waits."


class StandbyEvent(Enum):
    """The events that change the state."""

    WRITE = "All writers are free: they get the copy."
    HOLD = "A writer is busy: the copy waits, in the place of one that has waited."
    LEAVE_OUT = "A writer is busy, and copies that wait have taken too long: none is made."
    BEGIN = "The writers are free, and get the copy that waits."
    END = "The writers are free, and no copy waits."


#: (state, event) -> next state. An interrupted `wait` may leave each of them but FREE with writers at work.
TRANSITIONS: dict[tuple[StandbyState, StandbyEvent], StandbyState] = {
    **{(state, StandbyEvent.WRITE): StandbyState.WRITING for state in StandbyState},
    **{(state, StandbyEvent.HOLD): StandbyState.STANDBY for state in StandbyState if state is not StandbyState.FREE},
    (StandbyState.WRITING, StandbyEvent.LEAVE_OUT): StandbyState.MISSED,
    (StandbyState.STANDBY, StandbyEvent.LEAVE_OUT): StandbyState.LEFT_OUT,
    (StandbyState.LEFT_OUT, StandbyEvent.LEAVE_OUT): StandbyState.LEFT_OUT,
    (StandbyState.MISSED, StandbyEvent.LEAVE_OUT): StandbyState.MISSED,
    (StandbyState.STANDBY, StandbyEvent.BEGIN): StandbyState.WRITING,
    (StandbyState.LEFT_OUT, StandbyEvent.BEGIN): StandbyState.MISSED,
    (StandbyState.FREE, StandbyEvent.END): StandbyState.FREE,
    (StandbyState.WRITING, StandbyEvent.END): StandbyState.FREE,
    (StandbyState.MISSED, StandbyEvent.END): StandbyState.MISSED,
}
#: A copy waits.
WAITS = frozenset({StandbyState.STANDBY, StandbyState.LEFT_OUT})
#: A state that was due has no copy.
OWED = frozenset({StandbyState.LEFT_OUT, StandbyState.MISSED})


class Standby(StateMachine[StandbyState, StandbyEvent]):
    """The state, and the time that training has waited for copies since the checkpoint that is being written.

    Attributes:
        spent: milliseconds of copies on standby, on this rank.
    """

    def __init__(self) -> None:
        super().__init__(StandbyState.FREE, TRANSITIONS)
        self.spent = 0.0
        self._since = 0

    def decide(self, *, is_free: bool, now: int, spent: int, may_be_left_out: bool) -> StandbyState:
        """Decide on the next copy. Return the state.

        Args:
            is_free: all writers are free.
            now: rank 0's clock, in milliseconds.
            spent: the most that a rank has spent.
            may_be_left_out: the copy is not made if it would wait, and such copies have taken more than `_SHARE` of the
                time.
        """
        if is_free:
            self._since, self.spent = now, 0.0
            self.fire(StandbyEvent.WRITE)
        else:
            is_slow = spent > _SHARE * (now - self._since)
            self.fire(StandbyEvent.LEAVE_OUT if may_be_left_out and is_slow else StandbyEvent.HOLD)
        return self.state

    def add(self, seconds: float) -> None:
        """Count time that training has waited for a copy, if this is on standby."""
        if self.state is StandbyState.STANDBY:
            self.spent += 1000 * seconds
