"""The state that differs between ranks: buffers, sums, random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.rank_state import (
    gather_rank_states,
    get_rng_state,
    seed_start,
    set_rng_state,
    take_buffers,
)
from tests.ranks import run_ranks

CPU = torch.device("cpu")


def in_two_ranks(rank: int) -> tuple[list[dict[str, Any]], list[float]]:
    hvd.init()
    net = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    net[1].running_mean.fill_(rank + 1.0)  # type: ignore[operator, union-attr]
    states = gather_rank_states(net, CPU, {"sums": torch.tensor([float(rank)])})
    blank = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    take_buffers(blank, states[rank])
    return states, blank[1].running_mean.tolist()  # type: ignore[operator, union-attr]


def test_each_rank_has_the_buffers_in_which_it_differs_from_rank_0() -> None:
    (first, mean_of_0), (second, mean_of_1) = run_ranks(2, in_two_ranks)
    assert [list(state["buffers"]) for state in first] == [[], ["1.running_mean"]]
    assert [state["sums"].tolist() for state in first] == [[0.0], [1.0]]
    assert second[1]["buffers"]["1.running_mean"].tolist() == [2.0]
    assert (mean_of_0, mean_of_1) == ([0.0], [2.0]), "rank 0's are in the model's own state"


def drawn() -> list[float]:
    return [*torch.rand(2).tolist(), random.gauss(0, 1), float(numpy.random.standard_normal())]


def test_random_numbers_continue() -> None:
    drawn()  # so that Python and NumPy each keep a second number
    state = get_rng_state(CPU)
    expected = drawn()
    drawn()
    set_rng_state(CPU, state)
    assert drawn() == expected


def test_a_seed_decides_all_random_numbers() -> None:
    numbers = []
    for seed in (1, 1, 2, 1 << 70):
        seed_start(seed)
        numbers.append(drawn())
    assert numbers[0] == numbers[1]
    assert all(len({row[place] for row in numbers}) == 3 for place in range(4))
