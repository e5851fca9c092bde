"""Decides who is in which round of an elastic job, from what it is told; does nothing itself.

Whoever launches the ranks tells a `RoundPlanner` what it sees (a process is ready, a process has ended) and does what
the planner decides. The planner knows neither processes nor sockets nor clocks, so that launchers of all kinds can have
it: ``launch.elastic`` is one.

A *member* is a process of the present round, a *newcomer* one that was started later and waits for its first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import timedelta

#: A member that was found silent may yet come within so long, before it is given up.
SILENT_GRACE = timedelta(seconds=2)

#: Where no limit of resets is set: so many rounds in a row that end without a commit are no chance.
FRUITLESS_ROUNDS = 10


@dataclass(frozen=True)
class Terms:
    """What the user asked for.

    Attributes:
        size: number of ranks to begin with.
        min_size: the least to go on with, 1 <= min_size <= size.
        replace: ranks that were lost are replaced by new processes, so that there are `size` again.
        reset_limit: how many rounds may follow the first; None: any number, as long as there is progress (see
            `FRUITLESS_ROUNDS`).
        timeout: how long to wait for the members of a new round, and for newcomers without whom there are too few.
    """

    size: int
    min_size: int
    replace: bool = False
    reset_limit: int | None = None
    timeout: timedelta = timedelta(seconds=600)

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.size:
            raise ValueError(
                f"min_size={self.min_size}: the least to go on with is at least 1 and at most the {self.size} ranks "
                "that the job begins with."
            )
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ValueError(f"reset_limit={self.reset_limit}: a number of rounds cannot be negative.")
        if self.timeout <= timedelta(0):
            raise ValueError(f"timeout={self.timeout}: there must be some time to come together.")


# --- Decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Tell these, which all wait, that they are the next round. A process's position is its rank."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Announce:
    """Tell these that a newcomer waits, so that they leave their round at the next commit."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Dissolve:
    """Tell these that their round has lost somebody: if they are still connecting, they need not wait for others."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Start so many newcomers."""

    count: int


@dataclass(frozen=True)
class Kill:
    """End this process; it does no more good. `why` stands behind "was stopped"."""

    process: int
    why: str


@dataclass(frozen=True)
class Fail:
    """End the job: it cannot go on. `why` is a sentence."""

    why: str


@dataclass(frozen=True)
class Finish:
    """All members have ended, and enough of them well. What newcomers there are is to be ended."""


Decision = Begin | Announce | Dissolve | Start | Kill | Fail | Finish


# --- What is known of a process ---------------------------------------------------------------------------------------


class Phase(enum.Enum):
    """Where a process stands."""

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


@dataclass
class RoundPlanner:
    """The one object that decides who is in a round. Not safe for several threads at once.

    Processes are called by numbers that the launcher gives: those of the first round are 0 ... size - 1 and have these
    ranks, newcomers get others.

    Attributes:
        terms: what the user asked for.
        round: number of the present round, from 1.
        room: how many processes there can be now; None: as many as ever. The launcher changes it as hosts go.
    """

    terms: Terms
    round: int = 1
    room: int | None = None
    _processes: dict[int, _Process] = field(default_factory=dict)
    _ranks: tuple[int, ...] = ()  # [ranks] the processes of the present round
    _well: int = 0  # members that have ended well
    _stories: list[str] = field(default_factory=list)  # how those of this job that were lost ended, in words
    _gathering_since: float | None = None
    _found_silent: dict[int, float] = field(default_factory=dict)
    _broken: bool = False  # the present round has lost somebody, or somebody has left it
    _dissolved: bool = False
    _announced: bool = False
    _newcomer_failed: bool = False
    _fruitless: int = 0  # rounds in a row before the present one that had no commit; -1: the present one has one
    _over: bool = False

    def __post_init__(self) -> None:
        # Whoever is there from the start holds the state that the job starts with.
        self._processes = {number: _Process(Phase.RUNNING, number, True) for number in range(self.terms.size)}
        self._ranks = tuple(self._processes)

    # --- what the launcher tells ---

    def started(self, process: int) -> None:
        """A newcomer has been started."""
        self._processes[process] = _Process(Phase.STARTING)

    def ready(
        self, process: int, now: float, *, holds_state: bool = False, silent: tuple[int, ...] = (), commits: int = 0
    ) -> None:
        """A process waits for its next round.

        Args:
            now: seconds, on the clock that `decide` is given.
            holds_state: it has taken over the job's state once.
            silent: ranks of the round that it left which it found silent.
            commits: how often it has committed in that round.
        """
        known = self._processes.get(process)
        if known is None:
            return
        if known.phase in (Phase.STARTING, Phase.WAITING):
            known.phase = Phase.WAITING
            return
        known.phase = Phase.READY
        known.holds_state |= holds_state
        if commits:
            self._fruitless = -1
        self._gather(now)
        for rank in silent:
            if 0 <= rank < len(self._ranks):
                self._found_silent.setdefault(self._ranks[rank], now)

    def ended(self, process: int, now: float, story: str | None) -> None:
        """A process is gone.

        Args:
            story: who it was and how it ended, a sentence; None: it ended well.
        """
        known = self._processes.pop(process, None)
        if known is None:
            return
        if known.phase in (Phase.STARTING, Phase.WAITING):
            self._newcomer_failed = True
            if story is not None:
                self._stories.append(story)
        elif story is None:
            self._well += 1
        else:
            self._stories.append(story)
            self._broken = True
            if self._members(Phase.READY):
                self._gather(now)

    # --- what it decides ---

    def decide(self, now: float) -> list[Decision]:
        """What to do now. To be asked after all that is told, and now and then, as time goes by."""
        if self._over:
            return []
        decisions = self._decide(now)
        self._over = any(isinstance(decision, (Fail, Finish)) for decision in decisions)
        return decisions

    @property
    def lost(self) -> list[str]:
        """How those that were lost ended, in words, first to last."""
        return list(self._stories)

    def _decide(self, now: float) -> list[Decision]:
        members = self._members()
        if not members and self._well:
            return [self._end()]
        too_few = self._too_few(now)
        if too_few is not None:
            return [too_few]
        decisions: list[Decision] = []
        at_work = self._members(Phase.RUNNING)
        if self._broken and at_work and not self._dissolved:
            self._dissolved = True
            decisions.append(Dissolve(tuple(at_work)))
        if self._wants_newcomers():
            decisions.append(Start(self._most() - len(self._processes)))
        if not members or self._gathering_since is not None:
            return decisions + self._gathered(now)
        if self._waiting() and not self._announced and not self._well and self._resets_allow(1):
            self._announced = True
            decisions.append(Announce(tuple(members)))
        return decisions

    def _gathered(self, now: float) -> list[Decision]:
        """The next round, when all that can be in it are there; until then whom to wait for no longer."""
        late = self._members(Phase.RUNNING)
        since = now if self._gathering_since is None else self._gathering_since
        if late:
            return [kill for process in late if (kill := self._give_up(process, since, now)) is not None]
        coming = self._members(Phase.READY) + ([] if self._well else self._waiting())
        if len(coming) < self.terms.min_size:
            return []  # newcomers are on their way, or `_too_few` would have said so
        if not self._resets_allow(1):
            return [Fail(f"its limit of resets ({self.terms.reset_limit}) is reached")]
        self._fruitless += 1
        if self.terms.reset_limit is None and self._fruitless >= FRUITLESS_ROUNDS:
            return [Fail(f"{self._fruitless} rounds in a row have ended without a commit")]
        # Who holds the state first, as rank 0's is the one that all take over; else the old order.
        coming.sort(key=lambda process: (not self._processes[process].holds_state, self._order(process)))
        if not self._processes[coming[0]].holds_state:
            return [Fail("nobody who holds its state is left: all that remain have only just come")]
        self.round += 1
        self._ranks = tuple(coming)
        for rank, process in enumerate(coming):
            self._processes[process].phase = Phase.RUNNING
            self._processes[process].rank = rank
        self._gathering_since = None
        self._found_silent.clear()
        self._broken = self._dissolved = self._announced = self._newcomer_failed = False
        return [Begin(self._ranks)]

    def _give_up(self, process: int, since: float, now: float) -> Kill | None:
        known = self._processes[process]
        silent_since = self._found_silent.get(process)
        if known.killed:
            return None
        if silent_since is not None and now - silent_since >= SILENT_GRACE.total_seconds():
            known.killed = True
            return Kill(process, "because it gave the other ranks no sign of life")
        if now - since >= self.terms.timeout.total_seconds():
            known.killed = True
            seconds = self.terms.timeout.total_seconds()
            return Kill(process, f"because it had not come to round {self.round + 1} after {seconds:g} seconds")
        return None

    def _too_few(self, now: float) -> Fail | None:
        """The end, when fewer are left than must be and nobody else will come."""
        members = self._members()
        if len(members) + self._well >= self.terms.min_size and not self._stranded():
            return None
        left = f"{len(members)} of its ranks are left" if len(members) != 1 else "1 of its ranks is left"
        needed = f"{left}, and at least {self.terms.min_size} are needed"
        if self._well:
            return Fail(f"{needed} ({self._well} had ended well before)")
        newcomers = [known for known in self._processes.values() if known.phase in (Phase.STARTING, Phase.WAITING)]
        if members and len(members) + len(newcomers) >= self.terms.min_size:
            if self._gathering_since is None:
                self._gathering_since = now
            if now - self._gathering_since < self.terms.timeout.total_seconds():
                return None
            starting = sum(known.phase is Phase.STARTING for known in newcomers)
            seconds = self.terms.timeout.total_seconds()
            return Fail(f"{needed}; {starting} that were started had not come after {seconds:g} seconds")
        if members and self._wants_newcomers():
            return None
        return Fail(needed)

    def _stranded(self) -> bool:
        """Whether the members wait for a round that those cannot be in which have ended well already."""
        ready = self._members(Phase.READY)
        return bool(self._well and ready and len(self._members()) < self.terms.min_size)

    def _end(self) -> Decision:
        if self._well >= self.terms.min_size:
            return Finish()
        return Fail(f"{self._well} of its ranks ended well, and at least {self.terms.min_size} are needed")

    def _wants_newcomers(self) -> bool:
        if not self.terms.replace or self._newcomer_failed or self._well or not self._members():
            return False
        if len(self._processes) >= self._most():
            return False
        # A loss itself takes one reset, and letting somebody in another; both are one when there are too few.
        return self._resets_allow(2 if self._broken and len(self._members()) >= self.terms.min_size else 1)

    def _most(self) -> int:
        """How many processes the job wants to have."""
        return self.terms.size if self.room is None else min(self.terms.size, self.room)

    def _resets_allow(self, more: int) -> bool:
        return self.terms.reset_limit is None or self.round - 1 + more <= self.terms.reset_limit

    def _gather(self, now: float) -> None:
        self._broken = True
        if self._gathering_since is None:
            self._gathering_since = now

    def _members(self, phase: Phase | None = None) -> list[int]:
        phases = (Phase.RUNNING, Phase.READY) if phase is None else (phase,)
        return [process for process, known in self._processes.items() if known.phase in phases]

    def _waiting(self) -> list[int]:
        return [process for process, known in self._processes.items() if known.phase is Phase.WAITING]

    def _order(self, process: int) -> tuple[bool, int]:
        """Members in the order of their ranks, then newcomers in the order of their coming."""
        rank = self._processes[process].rank
        return rank < 0, rank if rank >= 0 else process
