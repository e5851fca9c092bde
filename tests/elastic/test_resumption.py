"""The step at which ranks continue after a loss."""

from __future__ import annotations

import pytest

from spark_estimator.elastic.resumption import Facts, RecoveryState, Resumption, choose_resumption

NEW = Facts(RecoveryState.FRESH, 0, -1, -1, -1)


def at(state: RecoveryState, step: int, rank: int = 0, full: int = 0) -> Facts:
    return Facts(state, step, rank, 3, full)


LOST, AGREED = RecoveryState.LOST, RecoveryState.LOST_AGREED


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([NEW, NEW], Resumption(0, 0, from_full=False, spread=True)),
        ([at(LOST, 7), at(LOST, 7)], Resumption(0, 7, from_full=False, spread=False)),
        ([NEW, at(LOST, 7), at(LOST, 7)], Resumption(1, 7, from_full=False, spread=True)),
        ([at(LOST, 7), at(LOST, 8)], Resumption(1, 8, from_full=False, spread=True)),
        ([at(AGREED, 7), at(LOST, 7)], Resumption(1, 7, from_full=False, spread=True)),
        ([at(AGREED, 207, full=100), at(AGREED, 207, full=200)], Resumption(1, 200, from_full=True, spread=True)),
    ],
)
def test_the_last_whole_step_counts(facts: list[Facts], expected: Resumption) -> None:
    assert choose_resumption(facts) == expected
