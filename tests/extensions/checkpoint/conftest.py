"""Gives the tests of checkpoints two ranks that are already there, and small trainings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tests.torch.rank_pool import RankPool


@pytest.fixture(scope="package")
def pool() -> Iterator[list[RankPool]]:
    pools: list[RankPool] = []
    yield pools
    for each in pools:
        each.close()


@pytest.fixture
def two_ranks(pool: list[RankPool]) -> RankPool:
    if not pool or not pool[-1].usable:
        pool.append(RankPool(2))
    return pool[-1]
