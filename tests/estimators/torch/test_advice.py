"""Learning rate schedulers that are made for another number of steps than the epochs: a warning names them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from spark_estimator import TorchEstimator
from spark_estimator.estimators.torch.advice import warn_of_schedule

EPOCHS = 5
Make = Callable[[torch.optim.Optimizer], Any]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1, momentum=0.9)


def warned(make: Make) -> str:
    """The warning for a scheduler; empty: there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_schedule(make(optimizer()), EPOCHS)
    return "".join(str(warning.message) for warning in caught)


def warmup(warm: int, rest: int) -> Make:
    return lambda of: schedules.SequentialLR(
        of, [schedules.LinearLR(of, total_iters=warm), schedules.CosineAnnealingLR(of, rest)], [warm]
    )


def linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """As the schedules of transformers are."""
    return 1 - (step - num_warmup_steps) / num_training_steps


def as_transformers(warm: int, total: int) -> Make:
    return lambda of: schedules.LambdaLR(of, functools.partial(linear, num_warmup_steps=warm, num_training_steps=total))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda of: schedules.OneCycleLR(of, 0.1, total_steps=1000), "OneCycleLR(total_steps=1000)"),
        (lambda of: schedules.OneCycleLR(of, 0.1, epochs=5, steps_per_epoch=99), "OneCycleLR(total_steps=495)"),
        (lambda of: schedules.OneCycleLR(of, 0.1, total_steps=4), "OneCycleLR(total_steps=4)"),
        (lambda of: schedules.CosineAnnealingLR(of, 500), "CosineAnnealingLR(T_max=500)"),
        (lambda of: schedules.CosineAnnealingLR(of, 2), "CosineAnnealingLR(T_max=2)"),
        (lambda of: schedules.CosineAnnealingWarmRestarts(of, 100), "CosineAnnealingWarmRestarts(T_0=100)"),
        (lambda of: schedules.LinearLR(of, total_iters=100), "LinearLR(total_iters=100)"),
        (lambda of: schedules.PolynomialLR(of, total_iters=100), "PolynomialLR(total_iters=100)"),
        (lambda of: schedules.CyclicLR(of, 0.1, 0.2), "CyclicLR(total_size=4000)"),
        (warmup(100, 900), "LinearLR(total_iters=100), CosineAnnealingLR(T_max=900)"),
        (warmup(2, 900), "CosineAnnealingLR(T_max=900)"),
        (
            lambda of: schedules.ChainedScheduler([schedules.ExponentialLR(of, 0.9), schedules.ConstantLR(of, 1, 99)]),
            "ConstantLR(total_iters=99)",
        ),
        (
            lambda of: schedules.SequentialLR(of, [schedules.ExponentialLR(of, 0.9), warmup(1, 50)(of)], [1]),
            "CosineAnnealingLR(T_max=50)",
        ),
        (as_transformers(10, 1000), "LambdaLR(num_training_steps=1000), LambdaLR(num_warmup_steps=10)"),
    ],
)
def test_those_that_count_batches_are_named(make: Make, names: str) -> None:
    assert warned(make) == (
        f"lr_scheduler has {names}, and is stepped once after each epoch (epochs=5), not after each batch. Count "
        "its steps in epochs, or set epochs."
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda of: None,
        lambda of: schedules.OneCycleLR(of, 0.1, total_steps=5),
        lambda of: schedules.OneCycleLR(of, 0.1, total_steps=6),
        lambda of: schedules.CosineAnnealingLR(of, 5),
        lambda of: schedules.CosineAnnealingLR(of, 4),
        lambda of: schedules.CosineAnnealingWarmRestarts(of, 2),
        lambda of: schedules.LinearLR(of, total_iters=2),
        lambda of: schedules.ExponentialLR(of, 0.9),
        lambda of: schedules.StepLR(of, 30),
        lambda of: schedules.LambdaLR(of, lambda epoch: 1.0),
        lambda of: schedules.ReduceLROnPlateau(of),
        warmup(2, 3),
        as_transformers(1, 5),
    ],
)
def test_those_that_count_epochs_are_not(make: Make) -> None:
    assert not warned(make)


def test_fit_warns_before_anything_starts() -> None:
    net = nn.Linear(2, 1)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    made = TorchEstimator(
        model=net,
        optimizer=sgd,
        loss=nn.MSELoss(),
        label_cols=["y"],
        lr_scheduler=schedules.OneCycleLR(sgd, 0.1, total_steps=640),
        epochs=3,
        verbose=0,
    )
    with pytest.warns(UserWarning, match=r"OneCycleLR\(total_steps=640\), and .* \(epochs=3\), not"):
        with pytest.raises(TypeError):
            made._fit(None)  # type: ignore[arg-type]  # the parameters are looked at first
