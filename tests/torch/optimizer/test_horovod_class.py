"""Horovod's private class of distributed optimizers: what is an instance of it, and that it makes none."""

from __future__ import annotations

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.torch.optimizer import _DistributedOptimizer


@pytest.mark.usefixtures("job_of_one")
def test_what_distributed_optimizer_returns_is_an_instance() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    assert not isinstance(optimizer, _DistributedOptimizer)
    wrapped = hvd.DistributedOptimizer(optimizer)
    assert isinstance(wrapped, _DistributedOptimizer) and issubclass(type(wrapped), _DistributedOptimizer)
    assert not isinstance(torch.optim.SGD([parameter], lr=0.1), _DistributedOptimizer)
    assert issubclass(_DistributedOptimizer, torch.optim.Optimizer)


def test_it_makes_no_optimizers() -> None:
    # As Horovod makes its class from the user's.
    like_horovod = type("SGD", (torch.optim.SGD,), dict(_DistributedOptimizer.__dict__))
    for kind in (_DistributedOptimizer, like_horovod):
        with pytest.raises(TypeError, match=r"call horovod.torch.DistributedOptimizer\(optimizer"):
            kind([torch.nn.Parameter(torch.ones(1))], None, hvd.Compression.none)
