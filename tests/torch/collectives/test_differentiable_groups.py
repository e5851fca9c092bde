"""Gradients through the collectives on lists of tensors."""

from __future__ import annotations

import torch

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool


def test_a_group_of_which_some_have_gradients(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for function, expected in [
            (lambda group: hvd.grouped_allreduce(group, op=hvd.Sum), 3.0),
            (lambda group: hvd.grouped_allgather(group), 1.5),
            (lambda group: hvd.grouped_reducescatter(group, op=hvd.Sum), [[2.0, 2.0], [4.0, 4.0]]),
        ]:
            # On rank 1 the second float has no gradient; no rank has one of the integers, and no rank uses the third.
            leaves = [torch.ones(2, 2, requires_grad=True) for _ in range(3)]
            leaves[1].requires_grad_(rank == 0)
            outputs = function([leaves[0], torch.ones(2, dtype=torch.int64), leaves[1], leaves[2]])
            assert not outputs[1].requires_grad
            (outputs[0].sum() * (rank + 1)).backward()
            assert leaves[0].grad is not None
            assert torch.equal(leaves[0].grad, torch.tensor(expected).expand(2, 2).reshape(2, 2).t().t()), expected
            assert (leaves[1].grad is None) == (rank == 1)
            assert leaves[2].grad is not None
            assert not leaves[2].grad.any()

    two_ranks.run(check)
