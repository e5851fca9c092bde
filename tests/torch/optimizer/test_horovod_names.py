"""Names of Horovod's optimizers that are not public, and that programs ask for."""

from __future__ import annotations

import warnings
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


def test_attributes_that_programs_ask_for(job_of_one: None) -> None:
    model = model_of()

    class WithOwnHandles(torch.optim.SGD):
        _handles = "the user's"

    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), groups=2)
    assert optimizer._handles == {}
    assert optimizer._requires_update == set(model.parameters())
    assert (optimizer._groups, optimizer._synchronized, optimizer._should_synchronize) == (2, False, True)
    assert optimizer._compression is hvd.Compression.none
    with optimizer.skip_synchronize():
        assert not optimizer._should_synchronize
    assert not hasattr(optimizer, "_p_to_group")
    shadowed: Any = hvd.DistributedOptimizer(WithOwnHandles(model.parameters(), lr=0.1))
    assert shadowed._handles == "the user's"


def test_a_second_exchange_is_warned_of_where_step_is_called(two_ranks: RankPool) -> None:
    def check(rank: int) -> tuple[str, bool]:
        model = model_of()
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 6)).sum().backward()
        optimizer.synchronize()
        assert optimizer._synchronized
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
            optimizer.step()
        [warning] = caught
        return warning.filename, "without optimizer.skip_synchronize()" in str(warning.message)

    for filename, is_that in two_ranks.run(check):
        assert is_that
        assert filename == __file__


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
