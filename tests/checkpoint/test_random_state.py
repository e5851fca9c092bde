"""Random numbers continue where a state was taken."""

from __future__ import annotations

import random

import numpy
import torch

from spark_estimator.checkpoint.random_state import get_random_state, set_random_state


def test_random_numbers_go_on_where_they_were() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.random()), float(torch.rand(()))

    state = get_random_state()
    first = drawn()
    assert drawn() != first
    set_random_state(state)
    assert drawn() == first
