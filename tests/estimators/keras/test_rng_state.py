"""The state of the random number generators of a process."""

from __future__ import annotations

import random

import numpy
import pytest

pytest.importorskip("keras")


from spark_estimator.estimators.keras.rng_state import get_rng_state, set_rng_state


def test_random_numbers_continue() -> None:
    numpy.random.seed(3)
    random.seed(3)
    numpy.random.standard_normal()  # so that a second number is kept
    random.gauss(0, 1)
    state = get_rng_state()
    drawn, python = numpy.random.standard_normal(3), random.gauss(0, 1)
    set_rng_state(state)
    assert numpy.array_equal(numpy.random.standard_normal(3), drawn)
    assert random.gauss(0, 1) == python
