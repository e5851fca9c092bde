"""Two ranks and a process alone, which stay between the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("peft")
pytest.importorskip("datasets")

from tests.scenarios.huggingface.rank_pool import RankPool, ready


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "huggingface" in item.path.parts:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def pools() -> Iterator[dict[int, RankPool]]:
    made = ready(2, 1)
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture
def two_ranks(pools: dict[int, RankPool]) -> RankPool:
    if not pools[2].usable:
        pools[2].close()
        pools |= ready(2)
    return pools[2]


@pytest.fixture
def alone(pools: dict[int, RankPool]) -> RankPool:
    return pools[1]
