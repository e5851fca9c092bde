"""Ranks whose optimizers have the same named parameters in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from spark_estimator.torch.optimizer.order import find_first_rank_order
from tests.torch.rank_pool import RankPool

NAMES = ("a", "b", "c", "d")


def parameters_of(rank: int) -> dict[str, nn.Parameter]:
    """Parameters of one shape, which no check tells apart; in another order on each rank."""
    parameters = {name: nn.Parameter(torch.zeros(2)) for name in NAMES}
    names = NAMES[rank:] + NAMES[:rank] if rank else NAMES
    return {name: parameters[name] for name in (names if rank < 2 else reversed(names))}


def step(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], rank: int) -> list[float]:
    optimizer.zero_grad()
    loss = sum((10.0 ** NAMES.index(name) * (rank + 1)) * parameters[name].sum() for name in NAMES[:3])
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    gradients = [parameters[name].grad for name in NAMES]
    optimizer.step()
    return [0.0 if gradient is None else float(gradient[1]) for gradient in gradients]


@pytest.mark.parametrize("groups", [None, 2, [["a", "d"], ["c", "b"]]])
def test_gradients_meet_by_name(three_ranks: RankPool, groups: Any) -> None:
    def check(rank: int) -> None:
        parameters = parameters_of(rank)
        if isinstance(groups, list):
            in_groups: Any = [[parameters[name] for name in (group if rank else group[::-1])] for group in groups]
        else:
            in_groups = groups
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters.values(), lr=0.1), list(parameters.items())[::-1], groups=in_groups
        )
        for _ in range(3):
            assert step(optimizer, parameters, rank) == [2.0, 20.0, 200.0, 0.0]
        assert [round(float(parameters[name][0].detach()), 3) for name in NAMES] == [-0.6, -6.0, -60.0, 0.0]
        # Another parameter on all ranks: the new plan is put into one order, too.
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        assert step(optimizer, parameters, rank) == [2.0, 20.0, 200.0, 0.0]

    three_ranks.run(check)


def test_changes_of_adasum_meet_by_name(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        parameters = parameters_of(rank)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters.values(), lr=1.0), parameters.items(), op=hvd.Adasum
        )
        for _ in range(2):
            step(optimizer, parameters, rank)
        return [float(parameters[name][0].detach()) for name in NAMES]

    first, second = two_ranks.run(check)
    # Parallel changes g and 2g give 1.5 g in each of the two steps.
    assert first == second == pytest.approx([-3.0, -30.0, -300.0, 0.0])


def test_what_has_no_common_order(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        assert find_first_rank_order(["a", "b"], name="same", process_set=None) is None
        assert find_first_rank_order(["a", "b"][:: 1 - 2 * rank], name="other", process_set=None) == [rank, 1 - rank]
        assert find_first_rank_order(["a", "bc"[rank]], name="names", process_set=None) is None
        assert find_first_rank_order([rank, 0, 0, 1 - rank], name="twice", process_set=None) is None
        parameters = [nn.Parameter(torch.zeros(2 + number)) for number in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters[:: 1 - 2 * rank], lr=0.1))  # without names
        with pytest.raises(MismatchError, match="disagree about the parameters of DistributedOptimizer"):
            optimizer.step()

    two_ranks.run(check)
