"""Modules that PyTorch does not let be copied or pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from spark_estimator.torch.sending import prepare_to_send


class Doubled(nn.Module):
    """A parametrization of the user's."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


class Keeping(nn.Linear):
    """It keeps what it has computed, as an attribute and in a buffer."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("last", torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.kept = super().forward(rows)
        self.last = self.kept.mean().reshape(1)
        return self.kept


def parametrized() -> nn.Module:
    """With each of PyTorch's parametrizations, and two in one module."""
    torch.manual_seed(4)
    spectral = parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=3)
    last = parametrize.register_parametrization(parametrizations.weight_norm(nn.Linear(3, 1)), "bias", Doubled())
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 4)), spectral, last)


@pytest.mark.filterwarnings("ignore:.*_norm.* is deprecated")
@pytest.mark.parametrize(
    "make",
    [
        parametrized,
        Keeping,
        lambda: weight_norm(nn.Linear(3, 1)),
        lambda: spectral_norm(nn.Linear(3, 1)),
        lambda: prune.l1_unstructured(nn.Linear(3, 1), "weight", 0.4),
    ],
)
def test_a_copy_computes_and_learns_as_the_module(make: Callable[[], nn.Module]) -> None:
    net, rows = make().eval(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(rows)
    prepare_to_send(net)
    there, its_optimizer = pickle.loads(cloudpickle.dumps((net, optimizer)))
    again, _ = pickle.loads(cloudpickle.dumps((there, its_optimizer)))
    assert torch.equal(there(rows), net(rows)) and torch.equal(again(rows), net(rows))
    for module, stepped in ((net, optimizer), (there, its_optimizer)):
        stepped.zero_grad()
        module(rows).square().mean().backward()
        stepped.step()
    assert torch.allclose(there(rows), net(rows)) and not torch.equal(there(rows), again(rows))
    prepare_to_send(net)
    assert torch.equal(copy.deepcopy(net)(rows), net(rows))
