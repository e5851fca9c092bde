"""The parameters of the estimator of Lightning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

import spark_estimator.torch as hvd
from spark_estimator.estimators.lightning.parts import LightningParts, find_flavour, make_parts
from spark_estimator.lightning import TorchEstimator


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self(batch["x"]).reshape(-1) - batch["y"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OfLightning1(Module):
    def training_epoch_end(self, outputs: Any) -> None: ...


def made(**parameters: Any) -> LightningParts:
    return make_parts(TorchEstimator(**{"model": Module(), "label_cols": ["y"], **parameters})._value)[0]


def test_a_module_tells_its_package() -> None:
    assert find_flavour(Module()) == "lightning.pytorch" == made().flavour
    assert find_flavour(nn.Linear(1, 1)) is None and made().plain is None


def test_callbacks_of_both_kinds_are_called() -> None:
    first, second = pl.Callback(), pl.Callback()
    parts = made(callbacks=[first], trainer_args={"callbacks": second, "max_epochs": 3})
    assert parts.callbacks == [first, second] and parts.trainer_args == {"max_epochs": 3}


def test_a_plain_module_needs_optimizer_and_loss() -> None:
    net = nn.Linear(3, 1)
    parts = made(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=nn.MSELoss())
    assert parts.plain is not None and parts.plain.labels == ["y"]
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim optimizer"):
        made(model=net, loss=nn.MSELoss())
    with pytest.raises(TypeError, match=r"model is a Linear, a torch\.nn\.Module and not a LightningModule: give it "):
        made(model=net)


def test_ranks_that_step_alone_have_the_rate_of_one_process() -> None:
    net = nn.Linear(3, 1)
    of_torch = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), 0.1), "loss": nn.MSELoss()}
    for parts in (made(sync="diloco", inner_steps=8), made(sync="diloco", inner_steps=8, **of_torch)):
        assert (parts.sync, parts.inner_steps, parts.scale_lr) == ("diloco", 8, False)
    assert parts.plain is not None and parts.plain.steps_locally and parts.plain.rate_is_joint
    assert made().scale_lr and not made().steps_locally


def test_hooks_of_lightning_1_that_are_not_called_are_named() -> None:
    with pytest.warns(UserWarning, match=r"Old.on_epoch_end\(\): no effect, as Lightning 2 .* use on_train_epoch_end"):
        made(model=type("Old", (Module,), {"on_epoch_end": lambda self: None})())
    with pytest.raises(ValueError, match=r"Old has validation_step_end\(\), which Lightning 2 does not call: return"):
        made(model=type("Old", (Module,), {"validation_step_end": lambda self, output: output})())
    made(model=type("Old", (Module,), {"validation_epoch_end": lambda self, outputs: None})())


def test_hooks_of_callbacks_that_are_not_called_are_named() -> None:
    old = type("Old", (pl.Callback,), {"on_epoch_end": lambda self, trainer, module: None})()
    for place in ({"callbacks": [old]}, {"trainer_args": {"callbacks": [old]}}):
        with pytest.warns(UserWarning, match=r"Old.on_epoch_end\(\): no effect, .* use on_train_epoch_end"):
            made(**place)


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"trainer_args": {"num_nodes": 2}}, ValueError, "is not taken: Spark places the ranks; num_proc is their num"),
        ({"trainer_args": {"callbacks": [3]}}, TypeError, r"trainer_args\['callbacks'\] are Callbacks of lightning"),
        ({"trainer_args": {"accelerator": "tpu"}}, ValueError, "must be 'cpu', 'gpu' or 'auto'; got 'tpu'"),
        ({"sync": "ddp"}, ValueError, r"sync must be one of \('allreduce', 'local_sgd', 'diloco'\); got 'ddp'"),
        (
            {"sync": "diloco", "gradient_compression": hvd.Compression.fp16},
            ValueError,
            "and sync='diloco' were both given: no gradients are sent",
        ),
        (
            {"model": OfLightning1(), "checkpoint_every_steps": 3},
            ValueError,
            r"OfLightning1 has training_epoch_end\(\)",
        ),
    ],
)
def test_parameters_that_do_not_fit(parameters: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        made(**parameters)
