"""What distinguishes one training of Lightning from another."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

from spark_estimator.estimators.lightning.identity import make_identity
from spark_estimator.estimators.lightning.parts import LightningParts
from tests.estimators.specs import spec_of


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, rate: float = 0.1, other: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(3, 1)


def identity(model: Any = None, **parts: Any) -> dict[str, list[str]]:
    framework = LightningParts("lightning.pytorch", model or Module(), None, **parts)
    return make_identity(spec_of(framework=framework), [7])


def test_hyperparameters_are_in_it_if_they_are_plain() -> None:
    assert identity()["model's hyperparameters"] == ["other=None", "rate=0.1"]
    assert identity(Module(0.2, other=[1]))["model's hyperparameters"] == ["rate=0.2"]


def test_arguments_of_the_trainer_that_change_numbers_are_in_it() -> None:
    free = {"max_epochs": 9, "enable_progress_bar": True, "logger": None}
    assert identity(trainer_args=free) == identity()
    clipped = identity(trainer_args={"gradient_clip_val": 0.5, "plugins": [3]})
    assert clipped["trainer_args"] == ["gradient_clip_val=0.5", "plugins=list", "scale_lr=True"]
    assert identity(scale_lr=False)["trainer_args"] == []
