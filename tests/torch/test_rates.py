"""Learning rates that are multiplied, and those that schedules keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedules

from spark_estimator.torch.rates import multiply_groups, multiply_schedules

EPOCHS = 6


def made(make: Callable[[Optimizer], Any]) -> tuple[Optimizer, Any]:
    net = nn.Linear(3, 1)
    optimizer = SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.005}], lr=0.02, momentum=0.9)
    return optimizer, make(optimizer)


def rates_of_epochs(optimizer: Optimizer, schedule: Any) -> list[float]:
    rates = []
    for _ in range(EPOCHS):
        rates += [float(group["lr"]) for group in optimizer.param_groups]
        optimizer.step()
        if isinstance(schedule, schedules.ReduceLROnPlateau):
            schedule.step(1.0)
        else:
            schedule.step()
    return rates


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
        lambda optimizer: schedules.StepLR(optimizer, 2, 0.1),
        lambda optimizer: schedules.CosineAnnealingLR(optimizer, 3, eta_min=0.003),
        lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=EPOCHS + 1),
        lambda optimizer: schedules.CyclicLR(optimizer, 0.01, 0.05, step_size_up=2),
        lambda optimizer: schedules.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, min_lr=0.004),
        lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.5, anneal_epochs=2),
        lambda optimizer: schedules.SequentialLR(
            optimizer,
            [schedules.LinearLR(optimizer, 0.25, total_iters=2), schedules.CosineAnnealingLR(optimizer, 3, 0.001)],
            [2],
        ),
        lambda optimizer: schedules.ChainedScheduler(
            [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.7)], optimizer
        ),
    ],
    ids=["lambda", "step", "cosine", "one cycle", "cyclic", "plateau", "averaging", "sequence", "chain"],
)
def test_each_step_has_the_multiplied_rate_of_the_same_schedule(make: Callable[[Optimizer], Any]) -> None:
    plain = rates_of_epochs(*made(make))
    optimizer, schedule = made(make)
    multiply_groups(optimizer.param_groups, 3)
    assert multiply_schedules([schedule, schedule], 3) == []
    assert len(set(plain)) > 2
    assert rates_of_epochs(optimizer, schedule) == pytest.approx([3 * rate for rate in plain])


def test_what_is_no_rate_stays() -> None:
    shared = torch.tensor(0.01)
    adam = Adam([{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))]}], lr=shared)
    multiply_groups([*adam.param_groups, adam.param_groups[0], {"params": [], "lr": None, "momentum": 0.9}], 2)
    assert [float(group["lr"]) for group in adam.param_groups] == pytest.approx([0.02, 0.02])
    assert float(shared) == pytest.approx(0.01), "the user's own tensor"
    assert {group["eps"] for group in adam.param_groups} == {1e-8}


def test_a_schedule_of_unknown_rates_is_returned() -> None:
    class Own:
        values = (0.1,)

    schedule = Own()
    assert multiply_schedules([schedule], 2) == [schedule] and schedule.values == (0.1,)
