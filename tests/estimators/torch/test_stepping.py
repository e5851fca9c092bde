"""The learning rate of all ranks, for a step alone, and what a user's step sees of the optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spark_estimator.estimators.torch.stepping import Stepping, joint_rate


def test_the_rate_of_all_ranks_is_for_the_step_alone() -> None:
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [net.weight], "lr": 0.1}, {"params": [net.bias], "lr": 0.3}])
    with pytest.raises(ZeroDivisionError), joint_rate(optimizer, 4):
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4, 1.2])
        raise ZeroDivisionError
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3]


def test_a_step_keeps_the_call_that_it_is_made_in() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    steps: list[int] = []
    stepping = Stepping(optimizer, lambda: steps.append(1))
    assert stepping.param_groups is optimizer.param_groups
    stepping.pending = 3
    stepping.step()
    assert (steps, stepping.pending) == ([1], 1)
