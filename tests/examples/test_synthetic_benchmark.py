"""The throughput example."""

from __future__ import annotations

import re

import pytest

from tests.examples.running import run


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4))])
def test_synthetic_benchmark(size: int) -> None:
    small = ["--model", "resnet10", "--width", "4", "--image-size", "32", "--batch-size", "2"]
    printed = run(
        size,
        "synthetic_benchmark",
        *small,
        "--num-warmup-batches",
        "1",
        "--num-batches-per-iter",
        "1",
        "--num-iters",
        "2",
    )
    match = re.search(r"each rank: ([0-9.]+) \+- [0-9.]+ images/s; (\d) ranks: ([0-9.]+)", printed)
    assert match, printed
    assert int(match[2]) == size
    assert float(match[3]) > 0
