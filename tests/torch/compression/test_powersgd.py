"""PowerSGD: its settings, and the gradients that it makes of two narrow matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.torch.compression.powersgd import PowerSGD
from tests.torch.feedback import MAKERS, owed_by
from tests.torch.rank_pool import RankPool


def test_matrices_of_low_rank_arrive_as_they_are(two_ranks: RankPool) -> None:
    """One sample a rank makes gradients of rank one, and their average one of rank two."""

    def check(rank: int) -> None:
        model = nn.Linear(40, 30)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=MAKERS["powersgd"]()
        )
        for step in range(4):
            inputs = [torch.randn(1, 40, generator=torch.Generator().manual_seed(r)) for r in range(2)]
            outputs = [torch.randn(1, 30, generator=torch.Generator().manual_seed(9 + r)) for r in range(2)]
            optimizer.zero_grad()
            ((1 + step) * model(inputs[rank]) * outputs[rank]).sum().backward()
            expected = sum(first.t() @ second for first, second in zip(outputs, inputs, strict=True)) * (1 + step) / 2
            assert isinstance(expected, torch.Tensor)
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, expected, rtol=0, atol=1e-4)
            assert owed_by(optimizer, model.weight).abs().max() < 1e-4
            # The next step begins with what this one has found.
            factor = optimizer._distributed.options.compression.memory._residues[model.weight].factor  # type: ignore[attr-defined]
            along = torch.linalg.qr(factor)[0]
            torch.testing.assert_close(expected @ along @ along.t(), expected, rtol=0, atol=1e-3)

    two_ranks.run(check)


def test_settings_out_of_range() -> None:
    for settings, text in (
        ({"rank": 0}, "rank=0 must be a whole number, 1 or more"),
        ({"dense_steps": -1}, "dense_steps=-1 must be a whole number, 0 or more"),
        ({"seed": 0.5}, r"seed=0\.5 must be a whole number"),
    ):
        with pytest.raises(ValueError, match=text):
            PowerSGD(**settings)  # type: ignore[arg-type]


def test_each_optimizer_has_residues_of_its_own() -> None:
    settings = PowerSGD(rank=3)
    copied = settings.for_one_optimizer()
    assert copied == settings and copied.memory is not settings.memory
