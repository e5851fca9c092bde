"""Gives the tests of the Keras binding two ranks for each backend, which have imported it already."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import rank_pool


class RankPool(rank_pool.RankPool):
    """Two ranks, or another number, whose Keras runs on `backend`; each call is a separate membership."""

    def __init__(self, backend: str, ranks: int = 2) -> None:
        quiet = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        super().__init__(ranks, _in_a_job, quiet)
        self.backend = backend

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 150) -> list[Any]:
        return super().run(function, *args, timeout=timeout)


def _in_a_job(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    import keras

    import spark_estimator.keras as hvd

    hvd.init()
    try:
        keras.utils.set_random_seed(1)
        return function(rank, *args)
    finally:
        hvd.shutdown()


@pytest.fixture(scope="package", params=["torch", "jax", "tensorflow"])
def pool(request: pytest.FixtureRequest) -> Iterator[Callable[[], RankPool]]:
    for needed in ("keras", request.param):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed here")
    pools: list[RankPool] = []

    def get() -> RankPool:
        if not pools or not pools[-1].usable:
            pools.append(RankPool(request.param))
        return pools[-1]

    yield get
    for each in pools:
        each.close()


@pytest.fixture
def two_ranks(pool: Callable[[], RankPool]) -> RankPool:
    """Of each backend in turn."""
    return pool()
