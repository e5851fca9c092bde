"""Use case 5: prices are scored by their logarithms, and a small training learns from words."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("keras")

from benchmarks.tpcx_ai.__main__ import run
from benchmarks.tpcx_ai.prices import Prices


def test_the_error_of_logarithms() -> None:
    score = Prices().score
    assert score([("10", "10.0"), ("20.5", "20.5")]) == 0
    assert score([("0", str(math.e - 1)), ("7", "7")]) == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_training_knows_prices() -> None:
    pytest.importorskip("tensorflow")
    result = run(5, 2, rows=6000, epochs=8)
    assert (result.rows, result.held_out, result.measure) == (6000, 1500, "mean squared logarithmic error")
    assert result.quality < 0.7  # a constant price has 1.4
