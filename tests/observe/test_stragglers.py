"""Ranks that hold up the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from spark_estimator.observe.step_times import Sample, StepParts
from spark_estimator.observe.stragglers import (
    ROUNDS,
    STEPS,
    TRANSITIONS,
    Cause,
    Pace,
    RankRound,
    RoundResult,
    StragglerWatch,
    find_excess,
)
from spark_estimator.state_machine import StateMachine

#: What a rank does in a step of 100 ms, where all are alike.
EVEN = (0.01, 0.07, 0.01, 0.01)


def make_round(*parts: float, sending: float = 0.0, host: str = "") -> RankRound:
    return RankRound(StepParts(*parts), sending=sending, host=host)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([make_round(*EVEN)] * 2, {}),
        ([make_round(0.01, 0.078, 0.002, 0.01), make_round(*EVEN)], {}),
        ([make_round(0.03, 0.07, 0.0, 0.01), make_round(0.01, 0.07, 0.02, 0.01)], {0: Cause.INPUT}),
        ([make_round(0.01, 0.09, 0.0, 0.01), make_round(0.01, 0.07, 0.02, 0.01)], {0: Cause.PROCESSOR}),
        # Less input, more computing: the step takes no longer.
        ([make_round(0.0, 0.08, 0.01, 0.01), make_round(*EVEN)], {}),
        # Both wait equally long for what goes through the link of rank 0.
        (
            [
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.05, host="a"),
                make_round(0.01, 0.07, 0.0, 0.06, sending=0.01, host="b"),
            ],
            {0: Cause.LINK},
        ),
        # Both are equally slow.
        (
            [
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.05, host="a"),
                make_round(0.01, 0.07, 0.0, 0.06, sending=0.05, host="b"),
            ],
            {},
        ),
        # Half of the step is the network's, in which hosts differ.
        (
            [
                make_round(0.0, 0.05, 0.0, 0.05, sending=0.045, host="a"),
                make_round(0.0, 0.05, 0.0, 0.05, sending=0.03, host="b"),
            ],
            {},
        ),
        # Of each host one rank sends for both.
        (
            [
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.05, host="a"),
                make_round(0.01, 0.07, 0.01, 0.05, host="a"),
                make_round(0.01, 0.07, 0.01, 0.05, host="b"),
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.05, host="b"),
            ],
            {},
        ),
        (
            [
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.05, host="a"),
                make_round(0.01, 0.07, 0.01, 0.05, host="a"),
                make_round(0.01, 0.07, 0.01, 0.05, host="b"),
                make_round(0.01, 0.07, 0.01, 0.05, sending=0.01, host="b"),
            ],
            {0: Cause.LINK},
        ),
        # On one host nothing is sent.
        ([make_round(*EVEN, sending=0.05, host="a"), make_round(*EVEN, host="a")], {}),
        # A slow link is worse than what its rank computes more; and is not.
        (
            [
                make_round(0.01, 0.085, 0.02, 0.03, sending=0.05, host="a"),
                make_round(0.01, 0.07, 0.01, 0.055, host="b"),
            ],
            {0: Cause.LINK},
        ),
        (
            [
                make_round(0.01, 0.11, 0.0, 0.02, sending=0.02, host="a"),
                make_round(0.01, 0.07, 0.04, 0.02, host="b"),
            ],
            {0: Cause.PROCESSOR},
        ),
        # It was sent beside computing, and no rank waited.
        ([make_round(0.01, 0.09, 0, 0, sending=0.05, host="a"), make_round(0.01, 0.09, 0, 0, host="b")], {}),
        (
            [make_round(0.01, 0.09, 0.0, 0.01), make_round(0.03, 0.07, 0.0, 0.01), *[make_round(*EVEN)] * 4],
            {0: Cause.PROCESSOR, 1: Cause.INPUT},
        ),
    ],
)
def test_who_holds_up_the_others(rounds: Sequence[RankRound], expected: Mapping[int, Cause]) -> None:
    assert {rank: excess.cause for rank, excess in find_excess(dict(enumerate(rounds))).items()} == expected


def test_a_slow_rank_has_recovered_below_half_of_the_limit() -> None:
    rounds = {0: make_round(0.01, 0.077, 0.003, 0.01), 1: make_round(*EVEN)}
    assert not find_excess(rounds) and find_excess(rounds, slow=[0])


def test_each_event_is_in_the_table_where_it_can_happen() -> None:
    for pace in Pace:
        assert {(pace, RoundResult.BEHIND), (pace, RoundResult.LEVEL)} <= TRANSITIONS.keys()
        assert StateMachine(pace, TRANSITIONS).allows(RoundResult.LASTING) == (pace in (Pace.LAGGING, Pace.RECOVERING))


class Ranks:
    """Two ranks whose samples come once a second, `rate` steps later."""

    def __init__(self, rate: int) -> None:
        self.watch = StragglerWatch(2)
        self._rate = rate
        self._samples = {rank: Sample(0.0, 0, host=f"host{rank}") for rank in range(2)}

    def run(self, seconds: int, computing: Sequence[float]) -> list[str]:
        lines = []
        for _ in range(seconds):
            for rank, share in enumerate(computing):
                before = self._samples[rank]
                blocked = before.blocked + (1.0 - share)
                now = Sample(before.at + 1.0, before.steps + self._rate, 0.0, blocked, blocked, host=before.host)
                self._samples[rank] = now
                lines += self.watch.note(rank, now)
        return lines


@pytest.mark.parametrize(("rate", "seconds"), [(100, ROUNDS), (4, ROUNDS), (2, 2 * ROUNDS), (1, STEPS)])
def test_it_is_named_once_and_again_when_it_has_recovered(rate: int, seconds: int) -> None:
    ranks = Ranks(rate)
    assert ranks.run(100, (0.9, 0.9)) == []
    assert ranks.run(seconds - 1, (0.7, 0.9)) == []
    [line] = ranks.run(1 + 100, (0.7, 0.9))
    assert re.fullmatch(r"rank 1 \(host host1\) is slow because of its processor, and each step 25% longer: .*", line)
    assert ranks.run(100, (0.83, 0.9)) == [], "not by half of the limit"
    assert ranks.run(200, (0.9, 0.9)) == ["rank 1 (host host1) keeps up with the other ranks again."]


def test_bursts_name_nobody() -> None:
    ranks = Ranks(50)
    ranks.run(1, (0.9, 0.9))
    for _ in range(20):
        assert ranks.run(ROUNDS - 1, (0.2, 0.9)) == []
        assert ranks.run(1, (0.9, 0.9)) == []
        assert ranks.run(ROUNDS - 1, (0.9, 0.2)) == []


def test_a_process_that_took_the_place_of_another_names_nobody() -> None:
    watch = StragglerWatch(2)
    for second in range(40):
        for rank in range(2):
            since = second - 20 if rank == 0 and second >= 20 else second
            assert watch.note(rank, Sample(1000.0 * rank + since, since * 20, blocked=since * 0.1)) == []


def test_a_rank_alone_is_not_compared() -> None:
    watch = StragglerWatch(1)
    assert not any(watch.note(0, Sample(float(second), second * 20)) for second in range(20))
