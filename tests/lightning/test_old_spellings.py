"""Arguments of Trainers of Lightning 1 that asked for Horovod."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from spark_estimator import compat
from spark_estimator.lightning.old_spellings import translated
from tests.lightning.training import package, trainer_of


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install(lightning=True)
    compat.install(lightning=True)
    yield
    compat.uninstall()


@pytest.mark.parametrize("flavour", ["lightning.pytorch", "pytorch_lightning"])
def test_trainers_take_them_as_long_as_that_is_wanted(installed: None, flavour: str) -> None:
    from spark_estimator.lightning import strategy_class

    trainer_class = package(flavour).Trainer
    quiet = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
    for old in ({"accelerator": "horovod"}, {"distributed_backend": "horovod"}, {"strategy": "horovod", "gpus": 0}):
        with pytest.warns(DeprecationWarning, match=r"write Trainer\(strategy='horovod', accelerator='cpu'\)") as told:
            trainer = trainer_class(**old, **quiet)
        assert told[0].filename == __file__
        assert isinstance(trainer.strategy, strategy_class(flavour))
    assert not isinstance(trainer_class(accelerator="cpu", **quiet).strategy, strategy_class(flavour))
    with pytest.raises(TypeError):
        trainer_class(gpus=1, **quiet)  # nobody has asked for Horovod
    assert "max_epochs" in inspect.signature(trainer_class.__init__).parameters
    compat.uninstall()
    with pytest.raises(ValueError, match="horovod"):
        trainer_class(accelerator="horovod", **quiet)
    assert trainer_of(flavour).strategy.root_device == torch.device("cpu")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"accelerator": "horovod", "gpus": 1}, {"strategy": "horovod", "accelerator": "gpu"}),
        ({"distributed_backend": "horovod", "accelerator": "cpu"}, {"strategy": "horovod", "accelerator": "cpu"}),
        ({"accelerator": "horovod", "gpus": None, "max_steps": 3},
         {"strategy": "horovod", "accelerator": "cpu", "max_steps": 3}),
        ({"strategy": "ddp", "gpus": 2}, {"strategy": "ddp", "gpus": 2}),
    ],
)  # fmt: skip
def test_what_they_become(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert translated(old)[0] == new


def test_two_strategies_at_once() -> None:
    with pytest.raises(ValueError, match=r"strategy='ddp'\): choose one"):
        translated({"accelerator": "horovod", "strategy": "ddp"})
