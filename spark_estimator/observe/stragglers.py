"""Names ranks that hold up the others, on the driver, from the samples in the progress reports.

With synchronous steps all ranks take equally long for one; the slow rank is the one that waits least for the others. So
it is found by what it does itself: its input and computing, against the median of the other ranks. A slow link shows
elsewhere: the rank behind it waits longer than others for data of the rank before it.

A rank is compared round by round. A round is a report of every rank, with ten steps at least, so that a pause in one
step, or a burst of another program, makes one round slow and not five. It is slow when five rounds in a row would each
have been shorter by a tenth of their rest without it; it has recovered when as many were not, by half of that. Each
gets one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median

from spark_estimator.observe.step_times import Sample, StepParts, divide
from spark_estimator.state_machine import StateMachine

#: A rank is slow if the rest of a step is exceeded by this share of it; one that is slow stays so above the half of it.
SLOW_SHARE = 0.1
ROUND_STEPS = 10
ROUND_SECONDS = 0.5
#: It takes this number of rounds to be slow, or to have recovered.
ROUNDS = 5


class Cause(Enum):
    """What is slow, as the message names it."""

    INPUT = "its input"
    PROCESSOR = "its processor"
    LINK = "its link"


class Pace(Enum):
    """The state of a rank."""

    EVEN = "It keeps up with the others."
    LAGGING = "It holds them up, for fewer rounds than it takes to name it."
    SLOW = "It holds them up, and was named."
    RECOVERING = "It was named, and keeps up, for fewer rounds than it takes to say so."


class RoundResult(Enum):
    """What a round shows of a rank."""

    BEHIND = "It held up the others."
    LEVEL = "It did not."
    LASTING = "What the last rounds have shown has lasted."


#: All changes of state that there are.
TRANSITIONS = {
    (Pace.EVEN, RoundResult.BEHIND): Pace.LAGGING,
    (Pace.EVEN, RoundResult.LEVEL): Pace.EVEN,
    (Pace.LAGGING, RoundResult.BEHIND): Pace.LAGGING,
    (Pace.LAGGING, RoundResult.LEVEL): Pace.EVEN,
    (Pace.LAGGING, RoundResult.LASTING): Pace.SLOW,
    (Pace.SLOW, RoundResult.BEHIND): Pace.SLOW,
    (Pace.SLOW, RoundResult.LEVEL): Pace.RECOVERING,
    (Pace.RECOVERING, RoundResult.LEVEL): Pace.RECOVERING,
    (Pace.RECOVERING, RoundResult.BEHIND): Pace.SLOW,
    (Pace.RECOVERING, RoundResult.LASTING): Pace.EVEN,
}


@dataclass(frozen=True)
class Excess:
    """By how much a rank exceeded the others in a round.

    Attributes:
        cause: of the larger part of it.
        seconds: of a step.
        share: of the rest of the step.
        waiting: the rank that waits for its data; -1: the cause is no link.
    """

    cause: Cause
    seconds: float
    share: float
    waiting: int = -1


@dataclass(frozen=True)
class RankRound:
    """What one rank did in a round, in seconds of a step.

    Attributes:
        parts: of the step.
        for_data: it slept in operations until data came.
        source: the rank whose data that mostly was; -1: none.
    """

    parts: StepParts
    for_data: float = 0.0
    source: int = -1

    @classmethod
    def between(cls, before: Sample, after: Sample) -> RankRound | None:
        """Return what was done between two samples; None: they are of two processes."""
        parts, steps = divide(before, after), after.steps - before.steps
        if parts is None or after.for_data < before.for_data or steps <= 0:
            return None
        return cls(
            StepParts(*(each / steps for each in parts)), (after.for_data - before.for_data) / steps, after.source
        )

    @property
    def own(self) -> float:
        """Return what the rank was busy with itself."""
        return self.parts.input + self.parts.compute


def find_excess(rounds: Mapping[int, RankRound], slow: Iterable[int] = ()) -> dict[int, Excess]:
    """Return the ranks that held up the others in a round of two ranks or more; `slow`: those that are slow by now."""
    limits = {rank: SLOW_SHARE / 2 if rank in set(slow) else SLOW_SHARE for rank in rounds}
    result: dict[int, Excess] = {}
    for rank, figures in rounds.items():
        others = [each for number, each in rounds.items() if number != rank]
        seconds = figures.own - median(each.own for each in others)
        inputs = figures.parts.input - median(each.parts.input for each in others)
        share = _compute_share(seconds, figures)
        if share >= limits[rank]:
            result[rank] = Excess(Cause.INPUT if inputs > seconds / 2 else Cause.PROCESSOR, seconds, share)
    by_link: dict[int, Excess] = {}
    for rank, waiting in rounds.items():
        source, blocked = waiting.source, waiting.parts.peers + waiting.parts.network
        if source not in rounds:
            continue
        usual = median(each.for_data for number, each in rounds.items() if number != rank)
        seconds = min(waiting.for_data - usual, blocked)
        # Of a rank that is slow itself the data comes late, too, and one that is slow finds it late.
        known = max(result[each].seconds if each in result else 0.0 for each in (source, rank))
        share = _compute_share(seconds, waiting)
        if share >= limits[source] and seconds > max(known, by_link[source].seconds if source in by_link else 0.0):
            by_link[source] = Excess(Cause.LINK, seconds, share, rank)
    return {**result, **by_link}


def _compute_share(seconds: float, figures: RankRound) -> float:
    rest = sum(figures.parts) - seconds
    return seconds / rest if seconds > 0 and rest > 0 else 0.0


class _Track:
    """One rank's pace, and for how long it has been what the last rounds have shown."""

    def __init__(self) -> None:
        self.pace = StateMachine(Pace.EVEN, TRANSITIONS)
        self._rounds = 0

    def note(self, event: RoundResult) -> bool:
        """Note a round, and return whether the rank is to be named now, or its recovery."""
        if self.pace.fire(event):
            self._rounds = 0
        self._rounds += 1
        has_lasted = self._rounds >= ROUNDS
        return has_lasted and self.pace.allows(RoundResult.LASTING) and self.pace.fire(RoundResult.LASTING)


class StragglerWatch:
    """Follows one job's samples, of `size` ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._began: dict[int, Sample] = {}
        self._latest: dict[int, Sample] = {}
        self._tracks: dict[int, _Track] = {}

    def note(self, rank: int, sample: Sample) -> list[str]:
        """Note a rank's sample. Return a line for each rank that is slow from now on, or has recovered."""
        began = self._began.setdefault(rank, sample)
        if sample.steps < began.steps or sample.at < began.at:  # another process has taken its place
            self._began[rank] = began = sample
        if sample.steps - began.steps >= ROUND_STEPS and sample.at - began.at >= ROUND_SECONDS:
            self._latest[rank] = sample
        if len(self._latest) < self._size or self._size < 2:
            return []
        rounds = {number: RankRound.between(self._began[number], each) for number, each in self._latest.items()}
        hosts = {number: f"rank {number} (host {each.host})" for number, each in self._latest.items()}
        self._began, self._latest = self._latest, {}
        known = {number: each for number, each in rounds.items() if each is not None}
        return self._judge(known, hosts) if len(known) == self._size else []

    def _judge(self, rounds: Mapping[int, RankRound], hosts: Mapping[int, str]) -> list[str]:
        slow = [rank for rank, track in self._tracks.items() if track.pace.state in (Pace.SLOW, Pace.RECOVERING)]
        excess, lines = find_excess(rounds, slow), []
        for rank in rounds:
            track = self._tracks.setdefault(rank, _Track())
            if track.note(RoundResult.BEHIND if rank in excess else RoundResult.LEVEL):
                lines.append(describe(hosts, rank, excess.get(rank)))
        return lines


def describe(hosts: Mapping[int, str], rank: int, excess: Excess | None) -> str:
    """Return the line about a rank that is slow from now on; None: it has recovered."""
    if excess is None:
        return f"{hosts[rank]} keeps up with the other ranks again."
    milliseconds = f"{excess.seconds * 1000:.3g} ms a step longer"
    why = {
        Cause.INPUT: f"it waits {milliseconds} for its input than the others",
        Cause.PROCESSOR: f"it computes {milliseconds} than the others",
        Cause.LINK: f"{hosts.get(excess.waiting)} waits {milliseconds} for its data than others do for theirs",
    }[excess.cause]
    return f"{hosts[rank]} is slow because of {excess.cause.value}, and each step {excess.share:.0%} longer: {why}."
