"""Steps that are skipped because a gradient is not finite: undoes what they have changed, and names rank and rows.

A step's batches are counted when it is made. What metrics keep grows with the epoch, so that a copy of it at each step
would cost the square of the steps.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from spark_estimator.collectives import context
from spark_estimator.data.rank.epoch_rows import Batch
from spark_estimator.estimators.rank_run import find_not_finite
from spark_estimator.estimators.torch.epoch_means import EpochMeans
from spark_estimator.estimators.torch.losses import JointLoss, Tensors
from spark_estimator.estimators.torch.rank_state import get_rng_state, set_rng_state
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.observe.driver_log import log_to_driver

# Of a process: what follows is counted in the history.
_MOST_REPORTS = 10


@dataclass(frozen=True)
class _NotedBatch:
    """A batch of the present step, with its results."""

    batch: Batch
    loss: JointLoss
    outputs: Tensors
    labels: Tensors


class SkippedSteps:
    """The batches of the present step, and what this rank had before them.

    Args:
        sums: of the epoch.
        compute: (batch) returns its loss, without a collective.
    """

    def __init__(
        self, sums: EpochMeans, model: nn.Module, spec: TrainSpec, compute: Callable[[Batch], torch.Tensor]
    ) -> None:
        self._sums = sums
        self._model = model
        self._fields = spec.fields
        self._compute = compute
        self._buffers: list[torch.Tensor] = []
        self._batches: list[_NotedBatch] = []
        self._reports = _MOST_REPORTS if spec.verbose else 0

    def begin(self) -> None:
        """Keep what the batches of a step change besides gradients: buffers such as running means."""
        self._buffers = [buffer.clone() for buffer in self._list_buffers()]
        self._batches = []

    def note(self, batch: Batch, loss: JointLoss, outputs: Tensors, labels: Tensors) -> bool:
        """Note a batch of the step. Return whether its loss is finite."""
        parts = [replace(label, value=label.value.detach()) for label in loss.labels]
        joint = JointLoss(loss.value.detach(), parts)
        self._batches.append(_NotedBatch(batch, joint, [output.detach() for output in outputs], labels))
        return math.isfinite(joint.value) or not batch.rows

    def count(self) -> None:
        """Count the batches of the step, which is made."""
        for noted in self._batches:
            self._sums.add(noted.loss, noted.outputs, noted.labels, noted.batch.rows)

    def undo(self, epoch: int, done: int) -> None:
        """Go back to where the step began, and report the batches of this rank that are not finite.

        Args:
            epoch: from 0.
            done: batches of the epoch, with those of the step.
        """
        for number, noted in enumerate(self._batches, done - len(self._batches) + 1):
            text = self._describe(noted) if self._reports else ""
            if text:
                self._reports -= 1
                log_to_driver(f"epoch {epoch + 1}: the step of batch {number} was skipped: {text}")
                if not self._reports:
                    log_to_driver(f"rank {context.rank()} reports no more of them: the history counts skipped_steps")
        for buffer, before in zip(self._list_buffers(), self._buffers, strict=True):
            buffer.copy_(before)

    def _list_buffers(self) -> list[torch.Tensor]:
        saved = self._model.state_dict().keys()
        return [buffer for name, buffer in self._model.named_buffers() if name in saved]

    def _describe(self, noted: _NotedBatch) -> str:
        """Return what is not finite in a batch; empty: nothing."""
        batch, loss, outputs = noted.batch, float(noted.loss.value), noted.outputs
        if not batch.rows or (math.isfinite(loss) and not self._has_bad_gradient(batch)):
            return ""
        what = f"the loss was {loss}" if not math.isfinite(loss) else "the gradient was not finite"
        where = find_not_finite([batch], self._fields, "its batch")
        finite = torch.stack([output.reshape(len(output), -1).isfinite().all(1).cpu() for output in outputs]).all(0)
        rows = (~finite).nonzero().reshape(-1).tolist()
        if not where and rows:
            values: dict[str, Any] = {
                ", ".join(field.names): matrix[rows[0]].tolist()
                for field, matrix in zip(self._fields, batch.matrices, strict=True)
            }
            where = f"the model's output was not finite in its rows {rows}, the first of them {reprlib.repr(values)}."
        return f"rank {context.rank()}: {what}: {where or f'its {batch.rows} rows and their outputs were finite.'}"

    def _has_bad_gradient(self, batch: Batch) -> bool:
        """Return whether this rank's part of the gradient is not finite: it is computed again, without an exchange."""
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        state = get_rng_state(parameters[0].device)
        try:
            gradients: Sequence[Any] = torch.autograd.grad(self._compute(batch), parameters, allow_unused=True)
        finally:
            set_rng_state(parameters[0].device, state)
        return not all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)
