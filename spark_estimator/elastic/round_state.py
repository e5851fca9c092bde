"""What a `RoundPlanner` knows: the phase of the present round, with its table of transitions, and the job's processes.

A round usually passes through three phases, or four where a member is lost::

    WHOLE --lose--> BROKEN --gather--> GATHERING --begin--> WHOLE, the next round
    WHOLE --announce--> ANNOUNCED --gather--> GATHERING_AS_ANNOUNCED --begin--> WHOLE
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass


@enum.unique
class RoundPhase(enum.Enum):
    """The phase of a round."""

    WHOLE = "All members are at work, or have ended well."
    ANNOUNCED = "All members were asked to leave the round at their next commit."
    BROKEN = "A member was lost, and the others are at work."
    BROKEN_ANNOUNCED = "A member was lost, and the others were asked to leave the round at their next commit."
    GATHERING = "A member waits for the next round, or there are too few to continue without newcomers."
    GATHERING_AS_ANNOUNCED = "A member waits for the next round, as it was asked to; none was lost."
    ENDED = "The end of the job is decided."


class RoundEvent(enum.Enum):
    """The events that change the phase."""

    ANNOUNCE = "The members are asked to leave the round at their next commit."
    LOSE = "A member was lost."
    GATHER = "A member has left the round, or there are too few to continue without newcomers."
    BEGIN = "The next round begins."
    END = "The end of the job is decided."


#: (phase, event) -> next phase. The processes of a job that has ended may still be reported.
TRANSITIONS: dict[tuple[RoundPhase, RoundEvent], RoundPhase] = {
    (RoundPhase.WHOLE, RoundEvent.ANNOUNCE): RoundPhase.ANNOUNCED,
    (RoundPhase.WHOLE, RoundEvent.LOSE): RoundPhase.BROKEN,
    (RoundPhase.WHOLE, RoundEvent.GATHER): RoundPhase.GATHERING,
    (RoundPhase.ANNOUNCED, RoundEvent.LOSE): RoundPhase.BROKEN_ANNOUNCED,
    (RoundPhase.ANNOUNCED, RoundEvent.GATHER): RoundPhase.GATHERING_AS_ANNOUNCED,
    (RoundPhase.BROKEN, RoundEvent.ANNOUNCE): RoundPhase.BROKEN_ANNOUNCED,
    (RoundPhase.BROKEN, RoundEvent.LOSE): RoundPhase.BROKEN,
    (RoundPhase.BROKEN, RoundEvent.GATHER): RoundPhase.GATHERING,
    (RoundPhase.BROKEN_ANNOUNCED, RoundEvent.LOSE): RoundPhase.BROKEN_ANNOUNCED,
    (RoundPhase.BROKEN_ANNOUNCED, RoundEvent.GATHER): RoundPhase.GATHERING,
    (RoundPhase.GATHERING, RoundEvent.LOSE): RoundPhase.GATHERING,
    (RoundPhase.GATHERING, RoundEvent.GATHER): RoundPhase.GATHERING,
    (RoundPhase.GATHERING, RoundEvent.BEGIN): RoundPhase.WHOLE,
    (RoundPhase.GATHERING_AS_ANNOUNCED, RoundEvent.LOSE): RoundPhase.GATHERING,
    (RoundPhase.GATHERING_AS_ANNOUNCED, RoundEvent.GATHER): RoundPhase.GATHERING_AS_ANNOUNCED,
    (RoundPhase.GATHERING_AS_ANNOUNCED, RoundEvent.BEGIN): RoundPhase.WHOLE,
    **{(phase, RoundEvent.END): RoundPhase.ENDED for phase in RoundPhase if phase is not RoundPhase.ENDED},
    (RoundPhase.ENDED, RoundEvent.LOSE): RoundPhase.ENDED,
    (RoundPhase.ENDED, RoundEvent.GATHER): RoundPhase.ENDED,
}

GATHERING = frozenset({RoundPhase.GATHERING, RoundPhase.GATHERING_AS_ANNOUNCED})
#: A member was lost, or has left the round.
BROKEN = GATHERING | {RoundPhase.BROKEN, RoundPhase.BROKEN_ANNOUNCED}


class ProcessPhase(enum.Enum):
    """The phase of a process, as the planner knows it."""

    RUNNING = "a member at work, or on its way out of the round"
    NOTIFIED = "the same, and it was notified that its round is broken"
    READY = "a member that has left the round and waits for the next"
    STARTING = "a newcomer that has not got as far as init()"
    WAITING = "a newcomer that waits to be let in"


AT_WORK = frozenset({ProcessPhase.RUNNING, ProcessPhase.NOTIFIED})
READY = frozenset({ProcessPhase.READY})
MEMBERS = AT_WORK | READY
NEWCOMERS = frozenset({ProcessPhase.STARTING, ProcessPhase.WAITING})


@dataclass
class ElasticProcess:
    """A process of an elastic job, as the planner knows it."""

    phase: ProcessPhase
    rank: int = -1  # in the present round; of a newcomer -1
    holds_state: bool = False
    is_killed: bool = False
    is_standby: bool = False  # a newcomer that was started while no rank was missing
    silent_since: float | None = None  # when a member that left the present round reported this one as silent
    unwanted_since: float | None = None  # when its slot was removed; inf: it will be


class ProcessTable(dict[int, ElasticProcess]):
    """The processes of a job that have not ended, by number."""

    def select(self, phases: Collection[ProcessPhase], *, unwanted: bool | None = None) -> list[int]:
        """Return the processes in one of these phases; `unwanted`: only those that are, or are not."""
        return [
            number
            for number, process in self.items()
            if process.phase in phases and unwanted in (None, process.unwanted_since is not None)
        ]

    def get_order(self, number: int) -> tuple[bool, int]:
        """Return the sort key for members in the order of their ranks, then newcomers in the order of their start."""
        rank = self[number].rank
        return rank < 0, rank if rank >= 0 else number

    def get_next_order(self, number: int) -> tuple[bool, bool, int]:
        """Return the sort key for the next round: processes with the state first, since all copy rank 0's."""
        return not self[number].holds_state, *self.get_order(number)

    def keep_ranks(self, numbers: list[int]) -> list[int]:
        """Return `numbers` so that each rank that still exists has its process; the others fill the free ranks."""
        members = {self[number].rank: number for number in numbers}
        kept = {rank: number for rank, number in members.items() if 0 <= rank < len(numbers)}
        others = iter([number for number in numbers if number not in kept.values()])
        return [kept[rank] if rank in kept else next(others) for rank in range(len(numbers))]


@dataclass
class FailedStarts:
    """The newcomers that have failed since the present round began; no others are started before the next one."""

    replacement: bool = False  # one that was to be a rank; with another room than `room_at_failure`, others are started
    room_at_failure: int | None = None
    standby: bool = False  # one that was to wait for a loss
