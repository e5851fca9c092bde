"""Names of Horovod's optimizers that are not public, and that programs ask for."""

from __future__ import annotations

from typing import Any

import torch

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool
from tests.torch.training import model_of


def test_names_of_parameters() -> None:
    hvd.init()
    try:
        model = model_of()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        assert not hasattr(optimizer, "_allreduce_grad_async")
        named: Any = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        assert named._parameter_names == {param: name for name, param in model.named_parameters()}
        unnamed: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert unnamed._parameter_names[model[0].weight] == "allreduce.noname.0.0"
    finally:
        hvd.shutdown()


def test_a_gradient_is_reduced_by_hand(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        weight, bias = model[0].weight, model[0].bias
        weight.grad = torch.full_like(weight, float(rank))
        handle, context = optimizer._allreduce_grad_async(weight)
        assert context is None
        assert hvd.synchronize(handle) is weight.grad
        assert weight.grad.eq(0.5).all()
        hvd.synchronize(optimizer._allreduce_grad_async(bias)[0])
        assert bias.grad.eq(0).all()

    two_ranks.run(check)
