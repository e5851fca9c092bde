"""A step of a LightningModule on the first rows."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning.pytorch as pl

from spark_estimator import DataError
from spark_estimator.estimators.lightning.check import LightningTrial
from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.rows.shapes import Fields
from tests.estimators.specs import X, Y

FIELDS = Fields((X,), (Y,), None)


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, column: str = "y", factor: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.column, self.factor = column, factor

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self(batch["x"]).reshape(-1) - batch[self.column]).square().mean() / self.factor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(module: Any) -> tuple[int, ...]:
    features = pyarrow.array([[1.0, 2.0, 3.0]] * 4, pyarrow.list_(pyarrow.float32()))
    labels = pyarrow.array([1.0] * 4, pyarrow.float32())
    rows = pyarrow.RecordBatch.from_arrays([features, labels], names=["c0", "c1"])
    return LightningTrial(LightningParts("lightning.pytorch", module, None)).run(rows, FIELDS)


def test_a_step_leaves_the_module_as_it_is() -> None:
    module = Module()
    before = module.net.weight.clone()
    assert run(module) == (1,)
    assert torch.equal(module.net.weight, before) and module.net.weight.grad is None


def test_what_would_fail_on_the_ranks_fails_here() -> None:
    with pytest.raises(DataError, match="asked its batch for 'label': it is a dict of 'x', 'y'"):
        run(Module("label"))
    with pytest.raises(DataError, match="the loss of the first 4 rows is inf"):
        run(Module(factor=0.0))


CALLED: list[str] = []
_HOOKS = [name for name in dir(pl.LightningModule) if name.startswith("on_") and name != "on_gpu"]
_HOOKS += ["teardown", "prepare_data", "configure_callbacks"]


def noted(name: str) -> Any:
    """A hook of a module that notes its call."""

    def hook(self: Any, *args: Any, **keywords: Any) -> Any:
        CALLED.append(name)
        if name.endswith("batch_transfer"):
            return args[0]
        self.__dict__[f"made_{name}"] = True
        return [Callbacks()] if name == "configure_callbacks" else None

    return hook


class Callbacks(pl.Callback):  # type: ignore[misc]
    def on_train_end(self, *args: Any) -> None:
        CALLED.append("a callback's on_train_end")


class WithHooks(Module):
    """Its step needs a Trainer, and perhaps what a hook makes.

    Args:
        by_hand: it optimizes by hand.
        needs: a hook that has to be called before a step.
    """

    def __init__(self, by_hand: bool, needs: str = "") -> None:
        super().__init__()
        self.automatic_optimization = not by_hand
        self.needs = needs

    def setup(self, stage: str) -> None:
        self.net = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        assert not self.needs or getattr(self, f"made_{self.needs}")
        optimizer = self.optimizers()
        loss = super().training_step(batch)
        if not self.automatic_optimization:
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


for _name in _HOOKS:
    setattr(WithHooks, _name, noted(_name))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    "needs", ["", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"]
)
def test_hooks_do_not_run_on_the_driver(by_hand: bool, needs: str) -> None:
    """Hooks before the step do where the step fails without them."""
    CALLED.clear()
    assert run(WithHooks(by_hand, needs)) == (1,)
    assert "on_after_batch_transfer" in CALLED
    allowed = {"on_before_batch_transfer", "on_after_batch_transfer"}
    if needs:
        allowed |= {"on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"}
    assert set(CALLED) <= allowed


def test_what_fails_with_hooks_fails_here() -> None:
    module = WithHooks(by_hand=False)
    module.column = "label"
    with pytest.raises(DataError, match="asked its batch for 'label': it is a dict of 'x', 'y'"):
        run(module)
