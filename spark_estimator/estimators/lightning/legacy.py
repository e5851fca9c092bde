"""Plain modules as LightningModules: `to_lightning_module`, Horovod's ``horovod.spark.lightning.legacy``.

They are of classes that are made for the package of Lightning's that is there (`flavours`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.estimators.lightning.loaders import Named, get_inputs
from spark_estimator.estimators.torch.epoch_means import sum_over_ranks
from spark_estimator.estimators.torch.losses import TorchParts, compute_loss
from spark_estimator.lightning.flavours import choose_flavour


def to_lightning_module(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fns: Callable[..., Any] | Sequence[Callable[..., Any]],
    loss_weights: Sequence[float] | None,
    feature_cols: Sequence[str],
    label_cols: Sequence[str],
    sample_weights_col: str | None = None,
    validation: Any = None,
) -> Any:
    """Return a LightningModule that trains a plain module on batches that are dicts from column names to tensors.

    It logs ``train_loss`` and ``val_loss``. The Trainer's strategy decides whether the learning rate is
    multiplied by the number of ranks: `HorovodStrategy(scale_lr=...)`.

    Args:
        model: called with one tensor for each feature column.
        optimizer: of its parameters.
        loss_fns: one, or one for each label: a mean over rows.
        loss_weights: one for each label; None: equal ones that add up to 1.
        sample_weights_col: multiplies rows' losses; None: nothing does.
        validation: anything but None: it has a ``validation_step``, as it has otherwise; it is there for old calls.

    Raises:
        ValueError: there is not one loss, and one weight, for each label.
    """
    losses: list[Any] = list(loss_fns) if isinstance(loss_fns, (list, tuple)) else [loss_fns]
    shares = list(loss_weights or [1 / len(losses)] * len(losses))
    if not len(losses) == len(label_cols) == len(shares):
        raise ValueError(
            f"{len(losses)} losses and {len(shares)} loss_weights were given for {len(label_cols)} label columns: one "
            "each is needed."
        )
    parts = TorchParts(model, optimizer, losses, shares, [[] for _ in losses])
    fields = [Field((name,), ("",), (1,), "float32") for name in feature_cols]
    return adapter_class(choose_flavour())(parts, fields, list(label_cols), sample_weights_col)


@functools.cache
def adapter_class(flavour: str) -> Any:
    """Return the class of such modules for a package of Lightning's."""
    package: Any = importlib.import_module(flavour)

    class PlainModule(package.LightningModule):
        """A plain module, its optimizer and its losses.

        Attributes:
            model: the plain module.
            counted: how many rows of the current batch count; None: all.
        """

        def __init__(
            self, parts: TorchParts, inputs: Sequence[Field], labels: Sequence[str], weight: str | None
        ) -> None:
            super().__init__()
            self.model = parts.model
            self.counted: Callable[[], int] | None = None
            self._parts = parts
            self._inputs_of_model = tuple(inputs)
            self._labels = labels
            self._weight = weight

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.model(*inputs)

        def training_step(self, batch: Named, batch_idx: int) -> dict[str, Any]:
            return self._step(batch, "train_loss")

        def validation_step(self, batch: Named, batch_idx: int) -> dict[str, Any]:
            return self._step(batch, "val_loss")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._parts.optimizer

        def _step(self, batch: Named, name: str) -> dict[str, Any]:
            inputs = get_inputs(self._inputs_of_model, batch)
            labels = [batch[label] for label in self._labels]
            weights = None if self._weight is None else batch[self._weight]
            rows = len(labels[0]) if self.counted is None else self.counted()
            together = (
                list if self._parts.steps_locally or not hvd.is_initialized() or hvd.size() == 1 else sum_over_ranks
            )
            joint, outputs, shaped = compute_loss(self._parts, self.model, inputs, labels, weights, rows, together)
            loss = joint.value
            self.log(name, loss.detach(), on_step=False, on_epoch=True, batch_size=rows, sync_dist=True)
            with torch.no_grad():
                metrics = [
                    [float(torch.as_tensor(metric(output.detach(), label))) for metric in group]
                    for group, output, label in zip(self._parts.metrics, outputs, shaped, strict=True)
                ]
            return {"loss": loss, "all_metrics": metrics}

    PlainModule.__qualname__ = "PlainModule"
    return PlainModule
