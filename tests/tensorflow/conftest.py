"""Gives the tests of the TensorFlow binding two ranks that are already there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed here", allow_module_level=True)

from tests.tensorflow.rank_pool import RankPool


@pytest.fixture(scope="session")
def _kept() -> Iterator[list[RankPool]]:
    kept: list[RankPool] = []
    yield kept
    for pool in kept:
        pool.close()


@pytest.fixture
def two_ranks(_kept: list[RankPool]) -> RankPool:
    if not _kept or not _kept[-1].usable:
        _kept.append(RankPool(2))
    return _kept[-1]
