"""The elastic example, on one, two and four ranks."""

from __future__ import annotations

import re

import pytest

from tests.examples.running import run

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_elastic_digits(size: int) -> None:
    # That it outlives its ranks is tested where elastic training is.
    reached = re.findall(
        r"on (\d) ranks: accuracy ([0-9.]+)",
        run(size, "elastic_digits", "--epochs", "5", "--batch-size", "16", "--lr", "0.03"),
    )
    assert [int(ranks) for ranks, _ in reached] == [size] * 5
    assert float(reached[-1][1]) > 0.85
