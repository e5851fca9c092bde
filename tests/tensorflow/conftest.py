"""Gives the tests of the TensorFlow binding ranks that are already there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed here", allow_module_level=True)

from tests.tensorflow.rank_pool import RankPool


@pytest.fixture(scope="session")
def _kept() -> Iterator[dict[int, RankPool]]:
    pools: dict[int, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def ranks_of(_kept: dict[int, RankPool]) -> Callable[[int], RankPool]:
    """Returns the pool of a number of ranks."""

    def pool_of(size: int) -> RankPool:
        if size not in _kept or not _kept[size].usable:
            if size in _kept:
                _kept[size].close()
            _kept[size] = RankPool(size)
        return _kept[size]

    return pool_of


@pytest.fixture
def two_ranks(ranks_of: Callable[[int], RankPool]) -> RankPool:
    return ranks_of(2)


@pytest.fixture
def three_ranks(ranks_of: Callable[[int], RankPool]) -> RankPool:
    return ranks_of(3)
