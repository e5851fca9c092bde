"""Gives the tests of the PyTorch binding two ranks, or three, that are already there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from tests.torch.rank_pool import RankPool


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], RankPool]]:
    made: dict[int, RankPool] = {}

    def get(size: int) -> RankPool:
        if size not in made or not made[size].usable:
            if size in made:
                made[size].close()
            made[size] = RankPool(size)
        return made[size]

    yield get
    for pool in made.values():
        pool.close()


@pytest.fixture
def two_ranks(pools: Callable[[int], RankPool]) -> RankPool:
    return pools(2)


@pytest.fixture
def three_ranks(pools: Callable[[int], RankPool]) -> RankPool:
    return pools(3)


@pytest.fixture
def job_of_one() -> Iterator[None]:
    """This process is the only rank of a job."""
    import spark_estimator.torch as hvd

    hvd.init()
    yield
    hvd.shutdown()
