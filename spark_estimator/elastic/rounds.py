"""Decides which processes are in which round of an elastic job; a pure state machine without I/O.

The launcher reports events to a `RoundPlanner` (a process is ready, a process has ended) and carries out what
the planner decides. The planner knows neither processes nor sockets nor clocks, so that launchers of all kinds can have
it: ``launch.elastic`` is one.

A *member* is a process of the present round, a *newcomer* one that was started later and waits for its first. With
`Terms.standby`, newcomers wait also while no rank is missing, and replace members that are lost. A member is
*unwanted* if its slot was removed. It stays at work until the next commit at which the others can continue without it:
they are enough, or newcomers are there to take over the state. `round_state` has the table of a round's phases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
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
from spark_estimator.elastic.round_state import (
    AT_WORK,
    BROKEN,
    GATHERING,
    MEMBERS,
    NEWCOMERS,
    READY,
    TRANSITIONS,
    ElasticProcess,
    FailedStarts,
    ProcessPhase,
    ProcessTable,
    RoundEvent,
    RoundPhase,
)
from spark_estimator.state_machine import StateMachine

#: How long a silent member may still become ready before it is given up.
SILENT_GRACE = timedelta(seconds=2)

#: A member that is still at work so long after others were lost, or left the round, is reported.
LATE = timedelta(seconds=10)

#: Without a limit of resets: this number of rounds in a row without a commit ends the job, since it is no coincidence.
FRUITLESS_ROUNDS = 10


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
        loss_reports: how the processes that were lost ended, in words, first to last.
    """

    terms: Terms
    round: int = 1
    room: int | None = None
    room_may_grow: bool = False
    waits_for_room: str = ""
    loss_reports: list[str] = field(default_factory=list)
    _processes: ProcessTable = field(init=False)
    _ranks: tuple[int, ...] = field(init=False)  # [ranks] the processes of the present round
    _phase: StateMachine[RoundPhase, RoundEvent] = field(init=False)
    _finished_ok: int = 0  # members
    _ready_since: float | None = None  # since when the next round is gathered
    _lost_since: float | None = None  # when the present round lost the first member
    _failed_starts: FailedStarts = field(default_factory=FailedStarts)
    _fruitless: int = 0  # rounds in a row before the present one that had no commit; -1: the present one has one
    _keeps_ranks: bool = False  # the state comes from any rank that has it, and not from rank 0

    def __post_init__(self) -> None:
        # The first processes have the state with which the job starts.
        self._ranks = tuple(range(self.terms.size))
        self._processes = ProcessTable(
            {number: ElasticProcess(ProcessPhase.RUNNING, number, holds_state=True) for number in self._ranks}
        )
        self._phase = StateMachine(RoundPhase.WHOLE, TRANSITIONS)

    # --- reports of the launcher ---

    def note_start(self, number: int, *, standby: bool = False) -> None:
        """Note that a newcomer has been started; `standby` as in `Start`."""
        self._processes[number] = ElasticProcess(ProcessPhase.STARTING, is_standby=standby)

    def note_ready(
        self,
        number: int,
        now: float,
        *,
        holds_state: bool = False,
        silent: tuple[int, ...] = (),
        commits: int = 0,
        keeps_ranks: bool = False,
    ) -> None:
        """Note that a process waits for its next round.

        Args:
            now: seconds, on the clock of `decide`.
            holds_state: it has taken over the job's state once.
            silent: ranks of the round that it left which it found silent.
            commits: how often it has committed in that round.
            keeps_ranks: those who stay are to keep their ranks, and new ones to have those of lost ones.
        """
        process = self._processes.get(number)
        if process is None:
            return
        if process.phase in NEWCOMERS:
            process.phase = ProcessPhase.WAITING
            return
        process.phase = ProcessPhase.READY
        process.holds_state |= holds_state
        self._keeps_ranks |= keeps_ranks
        if commits:
            self._fruitless = -1
        self._gather(now)
        for peer in [self._processes.get(self._ranks[rank]) for rank in silent if 0 <= rank < len(self._ranks)]:
            if peer is not None and peer.silent_since is None:
                peer.silent_since = now

    def note_end(self, number: int, now: float, report: str | None) -> None:
        """Note that a process has ended. Call this before `room` is changed for that reason.

        Args:
            report: a sentence: which process it was and how it ended; None: it succeeded.
        """
        process = self._processes.pop(number, None)
        if process is None:
            return
        if report is not None:
            self.loss_reports.append(report)
        if process.phase in NEWCOMERS:
            if process.is_standby:
                self._failed_starts.standby = True
            else:
                self._failed_starts.replacement, self._failed_starts.room_at_failure = True, self.room
        elif report is None:
            self._finished_ok += 1
        else:
            self._phase.fire(RoundEvent.LOSE)
            self._lost_since = now if self._lost_since is None else self._lost_since
            if self._processes.select(READY):
                self._gather(now)

    def mark_unwanted(self, numbers: Iterable[int], now: float, *, warned: Collection[int] = ()) -> None:
        """Note that the slots of these, and of no others, are removed.

        Args:
            warned: those of them that work on for as long as their machines do.
        """
        removed = {number for number in numbers if number in self._processes}
        # With slots that are available again there may be too many processes: those that started last have to leave.
        others = sorted(self._processes.keys() - removed, key=self._processes.get_order)
        removed.update(others[self.terms.places :])
        for number, process in self._processes.items():
            if number not in removed:
                process.unwanted_since = None
            elif process.unwanted_since is None:
                process.unwanted_since = math.inf if number in warned else now

    # --- what it decides ---

    def decide(self, now: float) -> list[Decision]:
        """Return the decisions to carry out now.

        Call this after each report, and from time to time, because time-outs pass.
        """
        if self._phase.state is RoundPhase.ENDED:
            return []
        decisions = self._decide(now)
        if any(isinstance(decision, (Fail, Finish)) for decision in decisions):
            self._phase.fire(RoundEvent.END)
        return decisions

    def list_late(self, now: float) -> list[int]:
        """Return the members that the next round waits for: at work `LATE` after others were lost or left this one."""
        broken_since = min((since for since in (self._ready_since, self._lost_since) if since is not None), default=now)
        return self._processes.select(AT_WORK) if now - broken_since >= LATE.total_seconds() else []

    @property
    def is_gathering(self) -> bool:
        """Return whether a process waits for the next round, so that late members are stopped in time."""
        return self._phase.state in GATHERING

    def _decide(self, now: float) -> list[Decision]:
        members = self._processes.select(MEMBERS)
        if not members and self._finished_ok:
            return [self._end()]
        decisions = self._release(sorted(self._processes.select(NEWCOMERS, unwanted=True)))
        if (failure := self._check_count(now)) is not None:
            return [failure]
        unaware = self._processes.select({ProcessPhase.RUNNING})
        if self._phase.state in BROKEN and unaware:
            for number in unaware:
                self._processes[number].phase = ProcessPhase.NOTIFIED
            decisions.append(Dissolve(tuple(unaware)))
        decisions += self._plan_starts(now)
        if not members or self.is_gathering:
            return decisions + self._plan_next_round(now)
        if self._finished_ok or not self._has_resets(1):
            return decisions
        is_missing = len(self._processes.select(MEMBERS, unwanted=False)) < self.terms.most
        has_reason = (is_missing and self._list_waiting()) or self._can_shrink(now)
        if has_reason and self._phase.allows(RoundEvent.ANNOUNCE):
            self._phase.fire(RoundEvent.ANNOUNCE)
            decisions.append(Announce(tuple(members)))
        return decisions + self._kill_overdue(now)

    def _plan_next_round(self, now: float) -> list[Decision]:
        """Begin the next round when all that can be in it are there; until then kill members that are too late."""
        late = self._processes.select(AT_WORK)
        if late:
            return [kill for number in late if (kill := self._kill_late(number, now)) is not None]
        ready = self._processes.select(READY)
        coming = self._processes.select(READY, unwanted=False)
        newcomers = [] if self._finished_ok else self._list_waiting()
        coming += newcomers[: max(self.terms.most - len(coming), 0)]
        staying = sorted(set(ready) - set(coming), key=self._processes.get_next_order)
        needed = self._count_needed(now)
        # With `Terms.patience`, a member that is to leave stays until a newcomer takes its rank.
        least = needed if self.terms.patience is None else self.terms.most
        while staying and (len(coming) < least or not any(self._processes[number].holds_state for number in coming)):
            # One with the state is enough, who hands it on; so there is, for a round, one more than there may be.
            coming.append(staying.pop(0))
        may_follow = self.terms.patience is None or self._has_resets(1)
        if may_follow and len(coming) < needed:
            return []  # newcomers are starting, or may still start, or `_check_count` would fail
        if not self._has_resets(1):
            return [Fail(f"it reached reset_limit={self.terms.reset_limit}")]
        self._fruitless += 1
        if self.terms.reset_limit is None and self._fruitless >= FRUITLESS_ROUNDS:
            return [Fail(f"{self._fruitless} rounds in a row have ended without a commit")]
        coming.sort(key=self._processes.get_next_order)
        if not self._processes[coming[0]].holds_state:
            return [Fail("no process that has its state is left: all others are new")]
        if self._keeps_ranks:
            coming = self._processes.keep_ranks(coming)
        self._begin(coming)
        return [*self._release([number for number in ready if number not in coming]), Begin(self._ranks)]

    def _begin(self, numbers: list[int]) -> None:
        """Begin a round with these processes, in the order of their ranks."""
        self._phase.fire(RoundEvent.BEGIN)
        self.round += 1
        self._ranks = tuple(numbers)
        for rank, number in enumerate(numbers):
            process = self._processes[number]
            process.phase, process.rank, process.silent_since = ProcessPhase.RUNNING, rank, None
        self._ready_since = self._lost_since = None
        self.waits_for_room = ""
        self._failed_starts = FailedStarts()

    def _count_needed(self, now: float) -> int:
        """Return how many ranks a round needs to begin now."""
        patience = self.terms.patience
        if patience is None:
            return self.terms.min_size
        if self._lost_since is not None:
            return self.terms.size if now - self._lost_since < patience.total_seconds() else self.terms.min_size
        is_announced = self._phase.state in (RoundPhase.ANNOUNCED, RoundPhase.GATHERING_AS_ANNOUNCED)
        return self.terms.min_size if is_announced else len(self._ranks)

    @property
    def _min_ranks(self) -> int:
        """Return how many ranks have to be at work or to have ended well: with less the job can't continue."""
        if self.terms.patience is not None and self._finished_ok:
            return len(self._ranks)  # no round follows, and each rank's part of the result is needed
        return self.terms.min_size

    def _release(self, numbers: list[int]) -> list[Decision]:
        for number in numbers:
            del self._processes[number]
        return [Release(tuple(numbers))] if numbers else []

    def _kill_overdue(self, now: float) -> list[Decision]:
        """Kill members whose slots were removed long ago: they will not reach the next commit."""
        seconds = self.terms.timeout.total_seconds()
        decisions: list[Decision] = []
        for number in self._processes.select(MEMBERS, unwanted=True):
            process = self._processes[number]
            if process.unwanted_since is not None and now - process.unwanted_since >= seconds and not process.is_killed:
                process.is_killed = True
                decisions.append(Kill(number, f"because its slot was removed {seconds:g} seconds ago"))
        return decisions

    def _kill_late(self, number: int, now: float) -> Kill | None:
        """Kill a member at work that others found silent, or waited for too long."""
        process, seconds = self._processes[number], self.terms.timeout.total_seconds()
        ready_since = now if self._ready_since is None else self._ready_since
        if process.is_killed:
            return None
        if process.silent_since is not None and now - process.silent_since >= SILENT_GRACE.total_seconds():
            process.is_killed = True
            return Kill(number, "because the other ranks lost contact with it")
        if now - ready_since >= seconds:
            process.is_killed = True
            return Kill(number, f"because it didn't join round {self.round + 1} within {seconds:g} seconds")
        return None

    def _check_count(self, now: float) -> Fail | None:
        """Return the end of the job if too few processes are left and no other will join."""
        members = self._processes.select(MEMBERS)
        if len(members) + self._finished_ok >= self._min_ranks and not self._are_stranded():
            return None
        remaining = f"{len(members)} ranks are left" if len(members) != 1 else "1 rank is left"
        needed = f"{remaining}, and at least {self._min_ranks} are needed"
        if self._finished_ok:
            return Fail(f"{needed} ({self._finished_ok} had succeeded before)")
        seconds = self.terms.timeout.total_seconds()
        if members and len(members) + len(self._processes.select(NEWCOMERS)) >= self._min_ranks:
            if now - self._gather(now) < seconds:
                return None
            starting = len(self._processes.select({ProcessPhase.STARTING}))
            at_work = [f"rank {self._processes[number].rank}" for number in self._processes.select(AT_WORK)]
            late = ", ".join([*at_work, *([f"{starting} new processes"] if starting else [])])
            return Fail(f"{needed}; {late} didn't join round {self.round + 1} within {seconds:g} seconds")
        if members and any(not start.standby for start in self._plan_starts(now)):
            return None
        if members and self.room_may_grow:
            if now - self._gather(now) < seconds:
                self.waits_for_room = f"{needed}: waiting for hosts for up to {seconds:g} seconds"
                return None
            return Fail(f"{needed}; no new slots appeared within {seconds:g} seconds")
        return Fail(needed)

    def _are_stranded(self) -> bool:
        """Return whether members wait for a round that lacks those that have ended well already."""
        is_waiting = bool(self._finished_ok and self._processes.select(READY))
        return is_waiting and len(self._processes.select(MEMBERS)) < self._min_ranks

    def _end(self) -> Decision:
        if self._finished_ok >= self._min_ranks:
            return Finish()
        return Fail(f"{self._finished_ok} of its ranks succeeded, and at least {self._min_ranks} are needed")

    def _plan_starts(self, now: float) -> list[Start]:
        """Return the newcomers to start: those that are missing, and those that wait for a loss."""
        members = self._processes.select(MEMBERS)
        if not self.terms.replace or self._finished_ok or not members:
            return []
        # A loss takes one reset, and admitting a newcomer another; they are the same reset if there are too few.
        is_broken = self._phase.state in BROKEN
        if not self._has_resets(2 if is_broken and len(members) >= self._count_needed(now) else 1):
            return []
        room = self.terms.places if self.room is None else min(self.terms.places, self.room)
        wanted = len(self._processes.select(MEMBERS | NEWCOMERS, unwanted=False))
        missing = max(min(self.terms.most, room) - wanted, 0)
        waiting = max(room - max(wanted, self.terms.most), 0)
        if self._failed_starts.replacement and self._failed_starts.room_at_failure == self.room:
            missing = 0
        if self._failed_starts.standby or not self._has_resets(2 if is_broken else 1):
            waiting = 0
        starts = [Start(missing), Start(waiting, standby=True)]
        return [start for start in starts if start.count]

    def _can_shrink(self, now: float) -> bool:
        """Return whether there are unwanted members, and enough others for the next round."""
        others = len(self._processes.select(MEMBERS, unwanted=False)) + len(self._list_waiting())
        return bool(self._processes.select(MEMBERS, unwanted=True)) and others >= self._count_needed(now)

    def _list_waiting(self) -> list[int]:
        return self._processes.select({ProcessPhase.WAITING}, unwanted=False)

    def _has_resets(self, more: int) -> bool:
        return self.terms.reset_limit is None or self.round - 1 + more <= self.terms.reset_limit

    def _gather(self, now: float) -> float:
        """Begin to gather the next round, unless that has begun, and return since when it is gathered."""
        self._phase.fire(RoundEvent.GATHER)
        self._ready_since = now if self._ready_since is None else self._ready_since
        return self._ready_since
