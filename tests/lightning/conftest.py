"""Gives the tests of the Lightning binding two ranks that have imported it already."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.torch.rank_pool import RankPool


@pytest.fixture(scope="package")
def pool() -> Iterator[Callable[[], RankPool]]:
    made: list[RankPool] = []

    def get() -> RankPool:
        if not made or not made[-1].usable:
            made.append(RankPool(2))
        return made[-1]

    yield get
    for each in made:
        each.close()


@pytest.fixture
def two_ranks(pool: Callable[[], RankPool]) -> RankPool:
    return pool()
