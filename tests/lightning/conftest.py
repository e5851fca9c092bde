"""Gives the tests of the Lightning binding two ranks that have imported it already."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.torch.rank_pool import RankPool


@pytest.fixture(scope="package")
def pool() -> Iterator[Callable[[], RankPool]]:
    pools: list[RankPool] = []

    def get() -> RankPool:
        if not pools or not pools[-1].usable:
            pools.append(RankPool(2))
        return pools[-1]

    yield get
    for each in pools:
        each.close()


@pytest.fixture
def two_ranks(pool: Callable[[], RankPool]) -> RankPool:
    return pool()
