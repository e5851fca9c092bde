"""The state of the random number generators of a process."""

from __future__ import annotations

import numpy
import pytest

pytest.importorskip("keras")


from spark_estimator.estimators.keras.rng_state import rng_state, set_rng_state


def test_random_numbers_continue() -> None:
    numpy.random.seed(3)
    numpy.random.standard_normal()  # so that a second number is kept
    state = rng_state()
    drawn = numpy.random.standard_normal(3)
    set_rng_state(state)
    assert numpy.array_equal(numpy.random.standard_normal(3), drawn)
