"""What distinguishes one training of a PyTorch model from another."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.persistence.run_identity import find_differences
from spark_estimator.estimators.torch.identity import compute_digest, describe_module, make_identity
from spark_estimator.estimators.torch.losses import TorchParts
from tests.estimators.specs import spec_of


def identity(net: nn.Module | None = None, loss: Any = None, **optimizer: Any) -> dict[str, list[str]]:
    net = net or nn.Linear(3, 1)
    made = torch.optim.SGD(net.parameters(), **{"lr": 0.1, **optimizer})
    return make_identity(spec_of(framework=TorchParts(net, made, [loss or nn.MSELoss()], [1.0], [[]])), [7])


def test_the_same_parameters_are_the_same_training() -> None:
    assert identity() == identity(), "the numbers that a model begins with are not in it"
    assert identity()["optimizer"][0] == "SGD of [2] parameters"
    assert identity()["loss"] == ["1.0 MSELoss(reduction='mean')"]


def test_differences_are_named() -> None:
    for other, line in (
        (identity(lr=0.2), "optimizer: lr=0.1 -> lr=0.2"),
        (
            identity(loss=nn.L1Loss()),
            "loss: 1.0 MSELoss(reduction='mean') -> 1.0 L1Loss(reduction='mean')",
        ),
        (
            identity(nn.Linear(3, 2)),
            "model's numbers: weight float32[1, 3] -> weight float32[2, 3]",
        ),
        (
            identity(nn.Bilinear(1, 1, 1)),
            "model: the model of class Linear -> the model of class Bilinear",
        ),
    ):
        assert f"{line.replace(' -> ', ' in the checkpoint, ')} now" in find_differences(identity(), other)


def test_losses_are_known_by_their_settings() -> None:
    weighted = identity(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])))["loss"]
    assert "weight=[1.0, 2.0]" in weighted[0]
    (partial,) = identity(loss=functools.partial(nn.functional.huber_loss, delta=0.3))["loss"]
    assert partial == "1.0 partial(arguments=(), delta=0.3, of=huber_loss)"


def test_modules_are_known_by_their_classes_and_shapes() -> None:
    net = nn.Sequential(nn.Linear(2, 1).double())
    assert describe_module(net) == {
        "model": ["the model of class Sequential", "0 of class Linear"],
        "model's numbers": ["0.weight float64[1, 2]", "0.bias float64[1]"],
    }


def test_the_digest_is_that_of_the_numbers() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for number, value in enumerate((torch.zeros(0), torch.tensor(True), torch.ones(2, dtype=torch.bfloat16))):
        net.register_buffer(f"buffer{number}", value)
    before = compute_digest(net)
    assert compute_digest(copy.deepcopy(net)) == before
    net.get_buffer("buffer2")[1] = 2
    assert compute_digest(net) != before
