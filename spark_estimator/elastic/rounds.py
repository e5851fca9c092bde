"""Decides which processes are in which round of an elastic job; a pure state machine without I/O.

The launcher reports events to a `RoundPlanner` (a process is ready, a process has ended) and carries out what
the planner decides. The planner knows neither processes nor sockets nor clocks, so that launchers of all kinds can have
it: ``launch.elastic`` is one.

A *member* is a process of the present round, a *newcomer* one that was started later and waits for its first. With
`Terms.standby`, newcomers wait also while no rank is missing, and replace members that are lost. A member is
*unwanted* if its slot was removed. It stays at work until the next commit at which the others can continue without it:
they are enough, or newcomers are there to take over the state.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from spark_estimator.elastic.decisions import (
    Announce,
    Begin,
    Decision,
    Dissolve,
    Fail,
    Finish,
    Kill,
    Release,
    Start,
    Terms,
)

__all__ = [
    "FRUITLESS_ROUNDS",
    "LATE",
    "SILENT_GRACE",
    "Announce",
    "Begin",
    "Decision",
    "Dissolve",
    "Fail",
    "Finish",
    "Kill",
    "Phase",
    "Release",
    "RoundPlanner",
    "Start",
    "Terms",
]

#: How long a silent member may still become ready before it is given up.
SILENT_GRACE = timedelta(seconds=2)

#: A member that is still at work so long after others were lost, or left the round, is reported.
LATE = timedelta(seconds=10)

#: Without a limit of resets: this number of rounds in a row without a commit ends the job, since it is no coincidence.
FRUITLESS_ROUNDS = 10


# --- Processes --------------------------------------------------------------------------------------------------------


class Phase(enum.Enum):
    """The state of a process, as the planner knows it."""

    RUNNING = "a member at work, or on its way out of the round"
    READY = "a member that has left the round and waits for the next"
    STARTING = "a newcomer that has not got as far as init()"
    WAITING = "a newcomer that waits to be let in"


@dataclass
class _Process:
    phase: Phase
    rank: int = -1  # in the present round
    holds_state: bool = False
    killed: bool = False
    standby: bool = False  # a newcomer that was started while no rank was missing


@dataclass
class RoundPlanner:
    """The one object that decides who is in a round. Not safe for several threads at once.

    Processes have numbers that the launcher assigns: those of the first round are 0 ... size - 1 and have these ranks,
    newcomers get others.

    Attributes:
        terms: what the user asked for.
        round: number of the present round, from 1.
        room: how many processes there can be now, without those that are unwanted; None: no limit. The launcher changes
            it as hosts are added and removed.
        room_may_grow: hosts may still be added, so too few ranks wait for them, as long as the terms allow.
        waits_for_room: what those ranks wait for, for messages; '' for nothing.
    """

    terms: Terms
    round: int = 1
    room: int | None = None
    room_may_grow: bool = False
    waits_for_room: str = ""
    _processes: dict[int, _Process] = field(default_factory=dict)
    _ranks: tuple[int, ...] = ()  # [ranks] the processes of the present round
    _well: int = 0  # members that have ended well
    _stories: list[str] = field(default_factory=list)  # how those of this job that were lost ended, in words
    _gathering_since: float | None = None
    _found_silent: dict[int, float] = field(default_factory=dict)
    _broken_since: float | None = None  # when the present round lost a member, or a member left it
    _lost_since: float | None = None  # when it lost the first member
    _dissolved: bool = False
    _announced: bool = False
    _unwanted: dict[int, float] = field(default_factory=dict)  # since when
    _newcomer_failed: bool = False  # no other is started before the next round, or before there is another room
    _room_then: int | None = None
    _standby_failed: bool = False  # no other is started to wait before the next round
    _fruitless: int = 0  # rounds in a row before the present one that had no commit; -1: the present one has one
    _keeps_ranks: bool = False  # the state comes from any rank that has it, and not from rank 0
    _over: bool = False

    def __post_init__(self) -> None:
        # The first processes have the state with which the job starts.
        self._processes = {number: _Process(Phase.RUNNING, number, True) for number in range(self.terms.size)}
        self._ranks = tuple(self._processes)

    # --- reports of the launcher ---

    def started(self, process: int, *, standby: bool = False) -> None:
        """A newcomer has been started; `standby` as in `Start`."""
        self._processes[process] = _Process(Phase.STARTING, standby=standby)

    def ready(
        self,
        process: int,
        now: float,
        *,
        holds_state: bool = False,
        silent: tuple[int, ...] = (),
        commits: int = 0,
        keeps_ranks: bool = False,
    ) -> None:
        """A process waits for its next round.

        Args:
            now: seconds, on the clock of `decide`.
            holds_state: it has taken over the job's state once.
            silent: ranks of the round that it left which it found silent.
            commits: how often it has committed in that round.
            keeps_ranks: those who stay are to keep their ranks, and new ones to have those of lost ones.
        """
        known = self._processes.get(process)
        if known is None:
            return
        if known.phase in (Phase.STARTING, Phase.WAITING):
            known.phase = Phase.WAITING
            return
        known.phase = Phase.READY
        known.holds_state |= holds_state
        self._keeps_ranks |= keeps_ranks
        if commits:
            self._fruitless = -1
        self._gather(now)
        for rank in silent:
            if 0 <= rank < len(self._ranks):
                self._found_silent.setdefault(self._ranks[rank], now)

    def ended(self, process: int, now: float, story: str | None) -> None:
        """A process has ended. Report this before `room` is changed for that reason.

        Args:
            story: a sentence: which process it was and how it ended; None: it succeeded.
        """
        known = self._processes.pop(process, None)
        self._unwanted.pop(process, None)
        if known is None:
            return
        if known.phase in (Phase.STARTING, Phase.WAITING):
            if known.standby:
                self._standby_failed = True
            else:
                self._newcomer_failed, self._room_then = True, self.room
            if story is not None:
                self._stories.append(story)
        elif story is None:
            self._well += 1
        else:
            self._stories.append(story)
            self._break(now)
            self._lost_since = now if self._lost_since is None else self._lost_since
            if self._members(Phase.READY):
                self._gather(now)

    def unwanted(self, processes: Iterable[int], now: float) -> None:
        """The slots of these, and of no others, are removed."""
        gone = {process for process in processes if process in self._processes}
        # With slots that are available again there may be too many processes: those that started last have to leave.
        others = sorted((process for process in self._processes if process not in gone), key=self._order)
        gone.update(others[self.terms.places :])
        self._unwanted = {process: self._unwanted.get(process, now) for process in sorted(gone)}

    # --- what it decides ---

    def decide(self, now: float) -> list[Decision]:
        """The decisions to carry out now.

        Call this after each report, and from time to time, because time-outs pass.
        """
        if self._over:
            return []
        decisions = self._decide(now)
        self._over = any(isinstance(decision, (Fail, Finish)) for decision in decisions)
        return decisions

    def late(self, now: float) -> list[int]:
        """Members that the next round waits for: at work `LATE` after others were lost or left the present one."""
        if self._broken_since is None or now - self._broken_since < LATE.total_seconds():
            return []
        return self._members(Phase.RUNNING)

    @property
    def gathers(self) -> bool:
        """Whether a process waits for the next round, so that members that are late for it are stopped in time."""
        return self._gathering_since is not None

    @property
    def lost(self) -> list[str]:
        """How those that were lost ended, in words, first to last."""
        return list(self._stories)

    def _decide(self, now: float) -> list[Decision]:
        members = self._members()
        if not members and self._well:
            return [self._end()]
        decisions = self._released([process for process in self._unwanted if process not in members])
        too_few = self._too_few(now)
        if too_few is not None:
            return [too_few]
        at_work = self._members(Phase.RUNNING)
        if self._broken_since is not None and at_work and not self._dissolved:
            self._dissolved = True
            decisions.append(Dissolve(tuple(at_work)))
        for start in self._starts(now):
            decisions.append(start)
        if not members or self._gathering_since is not None:
            return decisions + self._gathered(now)
        if self._well or not self._resets_allow(1):
            return decisions
        missing = self._wanted_members() < self.terms.most
        if ((missing and self._waiting()) or self._can_do_without(now)) and not self._announced:
            self._announced = True
            decisions.append(Announce(tuple(members)))
        return decisions + self._overdue(now)

    def _gathered(self, now: float) -> list[Decision]:
        """The next round, when all that can be in it are there; until then whom to wait for no longer."""
        late = self._members(Phase.RUNNING)
        since = now if self._gathering_since is None else self._gathering_since
        if late:
            return [kill for process in late if (kill := self._give_up(process, since, now)) is not None]
        ready = self._members(Phase.READY)
        coming = [process for process in ready if process not in self._unwanted]
        newcomers = [] if self._well else self._waiting()
        coming += newcomers[: max(self.terms.most - len(coming), 0)]
        staying = sorted(set(ready) - set(coming), key=self._in_the_next_round)
        while staying and not self._can_be_a_round(coming, now):
            # One with the state is enough, who hands it on; so there is, for a round, one more than there may be.
            coming.append(staying.pop(0))
        may_follow = self.terms.patience is None or self._resets_allow(1)
        if may_follow and len(coming) < self._needed(now):
            return []  # newcomers are starting, or may still start, or `_too_few` would be true
        if not self._resets_allow(1):
            return [Fail(f"it reached reset_limit={self.terms.reset_limit}")]
        self._fruitless += 1
        if self.terms.reset_limit is None and self._fruitless >= FRUITLESS_ROUNDS:
            return [Fail(f"{self._fruitless} rounds in a row have ended without a commit")]
        # Processes with the state first, as all copy rank 0's; otherwise in the old order.
        coming.sort(key=self._in_the_next_round)
        if not self._processes[coming[0]].holds_state:
            return [Fail("no process that has its state is left: all others are new")]
        if self._keeps_ranks:
            coming = self._in_their_places(coming)
        self.round += 1
        self._ranks = tuple(coming)
        for rank, process in enumerate(coming):
            self._processes[process].phase = Phase.RUNNING
            self._processes[process].rank = rank
        self._gathering_since, self.waits_for_room = None, ""
        self._found_silent.clear()
        self._broken_since = self._lost_since = None
        self._dissolved = self._announced = self._newcomer_failed = self._standby_failed = False
        return [*self._released([process for process in ready if process not in coming]), Begin(self._ranks)]

    def _in_their_places(self, processes: list[int]) -> list[int]:
        """Those whose rank there still is have it, and the others have the free ones, in their order."""
        places = {self._processes[process].rank: process for process in processes}
        kept = {rank: process for rank, process in places.items() if 0 <= rank < len(processes)}
        others = iter([process for process in processes if process not in kept.values()])
        return [kept[rank] if rank in kept else next(others) for rank in range(len(processes))]

    def _can_be_a_round(self, processes: list[int], now: float) -> bool:
        there_is_state = any(self._processes[process].holds_state for process in processes)
        return there_is_state and len(processes) >= self._needed(now)

    def _needed(self, now: float) -> int:
        """How many ranks a round needs to begin now."""
        patience = self.terms.patience
        if patience is None:
            return self.terms.min_size
        if self._lost_since is not None:
            return self.terms.size if now - self._lost_since < patience.total_seconds() else self.terms.min_size
        return self.terms.min_size if self._announced else len(self._ranks)

    @property
    def _fewest(self) -> int:
        """How many ranks have to be at work or to have ended well: with less the job can't continue."""
        if self.terms.patience is not None and self._well:
            return len(self._ranks)  # no round follows, and each rank's part of the result is needed
        return self.terms.min_size

    def _released(self, processes: list[int]) -> list[Decision]:
        for process in processes:
            del self._processes[process], self._unwanted[process]
        return [Release(tuple(processes))] if processes else []

    def _overdue(self, now: float) -> list[Decision]:
        """Ends processes whose slots were removed long ago: they will not reach the next commit."""
        seconds = self.terms.timeout.total_seconds()
        decisions: list[Decision] = []
        for process in self._unwanted_members():
            if now - self._unwanted[process] >= seconds and not self._processes[process].killed:
                self._processes[process].killed = True
                decisions.append(Kill(process, f"because its slot was removed {seconds:g} seconds ago"))
        return decisions

    def _give_up(self, process: int, since: float, now: float) -> Kill | None:
        known = self._processes[process]
        silent_since = self._found_silent.get(process)
        if known.killed:
            return None
        if silent_since is not None and now - silent_since >= SILENT_GRACE.total_seconds():
            known.killed = True
            return Kill(process, "because the other ranks lost contact with it")
        if now - since >= self.terms.timeout.total_seconds():
            known.killed = True
            seconds = self.terms.timeout.total_seconds()
            return Kill(process, f"because it didn't join round {self.round + 1} within {seconds:g} seconds")
        return None

    def _too_few(self, now: float) -> Fail | None:
        """The end of the job, if too few processes are left and no other will join."""
        members = self._members()
        if len(members) + self._well >= self._fewest and not self._stranded():
            return None
        remaining = f"{len(members)} ranks are left" if len(members) != 1 else "1 rank is left"
        needed = f"{remaining}, and at least {self._fewest} are needed"
        if self._well:
            return Fail(f"{needed} ({self._well} had succeeded before)")
        newcomers = [known for known in self._processes.values() if known.phase in (Phase.STARTING, Phase.WAITING)]
        if members and len(members) + len(newcomers) >= self._fewest:
            if self._gathering_since is None:
                self._gathering_since = now
            if now - self._gathering_since < self.terms.timeout.total_seconds():
                return None
            starting = sum(known.phase is Phase.STARTING for known in newcomers)
            at_work = [f"rank {self._processes[process].rank}" for process in self._members(Phase.RUNNING)]
            late = ", ".join([*at_work, *([f"{starting} new processes"] if starting else [])])
            seconds = self.terms.timeout.total_seconds()
            return Fail(f"{needed}; {late} didn't join round {self.round + 1} within {seconds:g} seconds")
        if members and any(not start.standby for start in self._starts(now)):
            return None
        if members and self.room_may_grow:
            if self._gathering_since is None:
                self._gathering_since = now
            seconds = self.terms.timeout.total_seconds()
            if now - self._gathering_since < seconds:
                self.waits_for_room = f"{needed}: waiting for hosts for up to {seconds:g} seconds"
                return None
            return Fail(f"{needed}; no new slots appeared within {seconds:g} seconds")
        return Fail(needed)

    def _stranded(self) -> bool:
        """Whether the members wait for a round that those cannot be in which have ended well already."""
        ready = self._members(Phase.READY)
        return bool(self._well and ready and len(self._members()) < self._fewest)

    def _end(self) -> Decision:
        if self._well >= self._fewest:
            return Finish()
        return Fail(f"{self._well} of its ranks succeeded, and at least {self._fewest} are needed")

    def _starts(self, now: float) -> list[Start]:
        """The newcomers to start: those that are missing, and those that wait for a loss."""
        if not self.terms.replace or self._well or not self._members():
            return []
        # A loss takes one reset, and admitting a newcomer another; they are the same reset if there are too few.
        broken = self._broken_since is not None
        if not self._resets_allow(2 if broken and len(self._members()) >= self._needed(now) else 1):
            return []
        room = self._places()
        missing = max(min(self.terms.most, room) - self._wanted(), 0)
        waiting = max(room - max(self._wanted(), self.terms.most), 0)
        if self._newcomer_failed and self._room_then == self.room:
            missing = 0
        if self._standby_failed or not self._resets_allow(2 if broken else 1):
            waiting = 0
        starts = [Start(missing), Start(waiting, standby=True)]
        return [start for start in starts if start.count]

    def _places(self) -> int:
        """How many processes the job should have."""
        return self.terms.places if self.room is None else min(self.terms.places, self.room)

    def _wanted(self) -> int:
        """How many processes there are that need not leave."""
        return len(self._processes) - len(self._unwanted)

    def _wanted_members(self) -> int:
        return len(self._members()) - len(self._unwanted_members())

    def _unwanted_members(self) -> list[int]:
        return [process for process in self._members() if process in self._unwanted]

    def _can_do_without(self, now: float) -> bool:
        """Whether there are unwanted ones, and enough others for the next round."""
        unwanted = len(self._unwanted_members())
        return bool(unwanted) and len(self._members()) - unwanted + len(self._waiting()) >= self._needed(now)

    def _resets_allow(self, more: int) -> bool:
        return self.terms.reset_limit is None or self.round - 1 + more <= self.terms.reset_limit

    def _break(self, now: float) -> None:
        if self._broken_since is None:
            self._broken_since = now

    def _gather(self, now: float) -> None:
        self._break(now)
        if self._gathering_since is None:
            self._gathering_since = now

    def _members(self, phase: Phase | None = None) -> list[int]:
        phases = (Phase.RUNNING, Phase.READY) if phase is None else (phase,)
        return [process for process, known in self._processes.items() if known.phase in phases]

    def _waiting(self) -> list[int]:
        waiting = [process for process, known in self._processes.items() if known.phase is Phase.WAITING]
        return [process for process in waiting if process not in self._unwanted]

    def _in_the_next_round(self, process: int) -> tuple[bool, bool, int]:
        return not self._processes[process].holds_state, *self._order(process)

    def _order(self, process: int) -> tuple[bool, int]:
        """Members in the order of their ranks, then newcomers in the order of their coming."""
        rank = self._processes[process].rank
        return rank < 0, rank if rank >= 0 else process
