"""Names ranks that hold up the others, on the driver, from the samples in the progress reports.

With synchronous steps all ranks take equally long for one; the slow rank is the one that waits least for the others. So
it is found by what it does itself: its input and computing, against the median of the other ranks. All ranks wait for a
slow link, in a ring about equally; it shows in how long its host's data waited to be sent, against other hosts' median.

A rank is compared round by round. A round is a report of every rank, with a step at least. It is slow when five rounds
in a row, with 20 steps or more, would each have been shorter by a tenth of their rest without it; so a pause in one
step, or a burst of another program, is not enough. It has recovered when as many were not, by half of that. Each gets
one line.
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
ROUND_SECONDS = 0.5
#: It takes this number of rounds, and of steps in them, to be slow, or to have recovered.
ROUNDS = 5
STEPS = 20


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
    """

    cause: Cause
    seconds: float
    share: float


@dataclass(frozen=True)
class RankRound:
    """What one rank did in a round, in seconds of a step.

    Attributes:
        parts: of the step.
        steps: of the round.
        sending: its data waited to be sent.
        host: its name.
    """

    parts: StepParts
    steps: int = 1
    sending: float = 0.0
    host: str = ""

    @classmethod
    def between(cls, before: Sample, after: Sample) -> RankRound | None:
        """Return what was done between two samples; None: they are of two processes."""
        parts, steps = divide(before, after), after.steps - before.steps
        sending = after.sending - before.sending
        if parts is None or sending < 0 or steps <= 0:
            return None
        return cls(StepParts(*(each / steps for each in parts)), steps, sending / steps, after.host)

    @property
    def own(self) -> float:
        """Return what the rank was busy with itself."""
        return self.parts.input + self.parts.compute


def find_excess(rounds: Mapping[int, RankRound], slow: Iterable[int] = ()) -> dict[int, Excess]:
    """Return the ranks that held up the others in a round of two ranks or more; `slow`: those that are slow by now."""
    limits = {rank: SLOW_SHARE / 2 if rank in set(slow) else SLOW_SHARE for rank in rounds}
    result: dict[int, Excess] = {}
    for rank, figures in rounds.items():
        rest = [each for number, each in rounds.items() if number != rank]
        seconds = figures.own - median(each.own for each in rest)
        inputs = figures.parts.input - median(each.parts.input for each in rest)
        share = _compute_share(seconds, figures)
        if share >= limits[rank]:
            result[rank] = Excess(Cause.INPUT if inputs > seconds / 2 else Cause.PROCESSOR, seconds, share)
    senders = _find_senders(rounds)
    for rank in senders if len(senders) > 1 else []:
        figures = rounds[rank]
        usual = median(rounds[sender].sending for sender in senders if sender != rank)
        # What is sent beside computing holds up no rank.
        seconds = min(figures.sending - usual, figures.parts.peers + figures.parts.network)
        share = _compute_share(seconds, figures)
        # The step is longer by about twice of it, as others wait for what passes the link the other way.
        is_slow = seconds >= usual and share >= limits[rank] / 2
        if is_slow and (rank not in result or seconds > result[rank].seconds):
            result[rank] = Excess(Cause.LINK, seconds, share)
    return result


def _find_senders(rounds: Mapping[int, RankRound]) -> list[int]:
    """Return of each host the rank that sends longest: of its ranks, one may send for all."""
    by_host: dict[str, int] = {}
    for rank, figures in rounds.items():
        known = by_host.setdefault(figures.host, rank)
        if figures.sending > rounds[known].sending:
            by_host[figures.host] = rank
    return list(by_host.values())


def _compute_share(seconds: float, figures: RankRound) -> float:
    rest = sum(figures.parts) - seconds
    return seconds / rest if seconds > 0 and rest > 0 else 0.0


class _Track:
    """One rank's pace, and for how long it has been what the last rounds have shown."""

    def __init__(self) -> None:
        self.pace = StateMachine(Pace.EVEN, TRANSITIONS)
        self._rounds = self._steps = 0

    def note(self, event: RoundResult, steps: int) -> bool:
        """Note a round of some steps, and return whether the rank is to be named now, or its recovery."""
        if self.pace.fire(event):
            self._rounds = self._steps = 0
        self._rounds += 1
        self._steps += steps
        has_lasted = self._rounds >= ROUNDS and self._steps >= STEPS
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
        if sample.steps > began.steps and sample.at - began.at >= ROUND_SECONDS:
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
            if track.note(RoundResult.BEHIND if rank in excess else RoundResult.LEVEL, rounds[rank].steps):
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
        Cause.LINK: f"its data waits {milliseconds} to be sent than that of other hosts",
    }[excess.cause]
    return f"{hosts[rank]} is slow because of {excess.cause.value}, and each step {excess.share:.0%} longer: {why}."
