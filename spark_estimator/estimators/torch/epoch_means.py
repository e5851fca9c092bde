"""Loss and metrics of an epoch, of all ranks: means over the rows, or the labels that count.

torchmetrics' objects count all rows: they are updated by batches, and computed once.
"""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.estimators.inference.prediction_columns import get_output_kind
from spark_estimator.estimators.metric_names import group_values, key_by_name
from spark_estimator.estimators.torch.losses import JointLoss, Tensors, TorchParts


def counts_rows(metric: Any) -> bool:
    """Return whether a metric is one of torchmetrics' objects, and not a function of a batch."""
    package = sys.modules.get("torchmetrics")
    return package is not None and isinstance(metric, package.Metric)


def update_metric(metric: Any, output: torch.Tensor, label: torch.Tensor, loss: Any) -> None:
    """Count a batch.

    Those of classification get probabilities, where the loss takes logits: they take a batch whose logits are all from
    0 to 1 for one of probabilities. Classes are integers there, while a loss may want them as floats.
    """
    if ".classification" in type(metric).__module__:
        kind = get_output_kind(loss)
        if kind == "logit":
            output = output.sigmoid()
        elif kind == "logits":
            output = output.softmax(1)
        if label.is_floating_point() and torch.equal(label, label.trunc()):
            label = label.long()
    metric.update(output, label)


class CountedMetrics:
    """The objects among the metrics of an epoch, as copies of the user's.

    Args:
        groups: [labels][metrics] functions and objects.
        losses: [labels].
    """

    def __init__(self, groups: Sequence[Sequence[Any]], losses: Sequence[Any]) -> None:
        self._losses = losses
        places = [(row, at) for row, group in enumerate(groups) for at in range(len(group))]
        self._places = [(row, at) for row, at in places if counts_rows(groups[row][at])]
        self._metrics: Any = nn.ModuleList(copy.deepcopy(groups[row][at]) for row, at in self._places)
        if self._places:
            self._over_ranks: Any = importlib.import_module("spark_estimator.lightning.metrics")
            self._over_ranks.SyncedMetrics().adopt(self._metrics)
        self.clear()

    def __bool__(self) -> bool:
        return bool(self._places)

    def clear(self) -> None:
        """Forget all rows."""
        for metric in self._metrics:
            metric.reset()
            metric._to_sync = True  # with sync_on_compute=False ranks would have other values, and decide otherwise

    def add(self, outputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor]) -> None:
        """Count a batch."""
        for (row, _), metric in zip(self._places, self._metrics, strict=True):
            update_metric(metric.to(outputs[row].device), outputs[row].detach(), labels[row], self._losses[row])

    def fill_values(self, values: Sequence[list[Any]]) -> None:
        """Put what the metrics are over the rows of all ranks into [labels][metrics] values. A collective."""
        for (row, at), metric in zip(self._places, self._metrics, strict=True):
            values[row][at] = torch.as_tensor(metric.compute()).tolist()

    def get_state(self) -> list[dict[str, Any]]:
        """Return what this rank has counted, for `restore`."""
        return copy.deepcopy(self._over_ranks.get_metric_states(self._metrics)) if self else []

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore what `get_state` returned."""
        if self:
            self._over_ranks.take_metric_states(self._metrics, copy.deepcopy(states))

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """Add what `get_state` returned on another rank."""
        for metric, state in zip(self._over_ranks.iterate_metrics(self._metrics) if self else (), states, strict=True):
            metric._reduce_states(state)


class EpochMeans:
    """Loss and metrics over the rows of an epoch.

    A loss that leaves out labels, or weights classes, is a mean over the labels that count, as if the epoch were one
    batch; the others are means over rows.

    Attributes:
        sums: [2 + metrics + 2 * labels] rows, loss and metrics by rows, and loss and divisor of each label whose loss
            is no mean over rows; of this rank, on the CPU; changed in place. A metric that counts rows has none there.
        counted: those metrics.

    Args:
        counts_skipped: the last sum is the number of steps that were skipped.
    """

    def __init__(self, parts: TorchParts, *, counts_skipped: bool = False) -> None:
        self._parts = parts
        self._metrics = sum(len(group) for group in parts.metrics)
        self._counts_skipped = counts_skipped
        self.counted = CountedMetrics(parts.metrics, parts.losses)
        sums = 2 + self._metrics + 2 * len(parts.losses) + counts_skipped
        self.sums = torch.zeros(sums, dtype=torch.float64)
        # Of the batches so far as Python's numbers, which are cheaper to read in each step.
        self._rows = 0
        self._loss = 0.0

    def clear(self) -> None:
        """Reset the counts of rows."""
        self.sums.zero_()
        self._rows, self._loss = 0, 0.0
        self.counted.clear()

    def get_state(self) -> dict[str, Any]:
        """Return what this rank has counted, for `restore`."""
        return {"sums": self.sums.clone(), "counted": self.counted.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        sums = state["sums"]
        self.counted.restore(state["counted"])
        self.sums.copy_(sums)
        self._rows, self._loss = int(sums[0]), self._compute_mean(self.sums) * float(sums[0])

    @property
    def rows(self) -> int:
        """Return the rows of this rank so far."""
        return self._rows

    @property
    def loss(self) -> float | None:
        """Return the mean over this rank's batches so far, weighted by their rows."""
        return self._loss / self._rows if self._rows else None

    def add(self, loss: JointLoss, outputs: Tensors, labels: Tensors, rows: int) -> None:
        """Count a batch."""
        if not rows:
            return
        values = []
        with torch.no_grad():
            for group, output, label in zip(self._parts.metrics, outputs, labels, strict=True):
                values += [0.0 if counts_rows(metric) else metric(output.detach(), label) for metric in group]
            if self.counted:
                self.counted.add(outputs, labels)
        numbers = [float(torch.as_tensor(value)) for value in values]
        whole = float(loss.value.detach())
        by_rows = whole
        if any(label.divisor is not None for label in loss.labels):
            by_rows = sum(label.share * float(label.value) for label in loss.labels if label.divisor is None)
        self._rows += rows
        self._loss += whole * rows
        self.sums[0] += rows
        self.sums[1] += by_rows * rows
        for place, number in enumerate(numbers):
            self.sums[place + 2] += number * rows
        for place, of_label in enumerate(loss.labels):
            if of_label.divisor is not None:
                start = 2 + self._metrics + 2 * place
                self.sums[start] += of_label.share * float(of_label.value)
                self.sums[start + 1] += of_label.divisor

    def count_skipped(self) -> None:
        """Count a step that was skipped: on the ranks that step alone, else on rank 0 for all."""
        if self._parts.steps_locally or hvd.rank() == 0:
            self.sums[-1] += 1

    def compute_averages(self) -> dict[str, Any]:
        """Return the means over the rows of all ranks. A collective."""
        total = hvd.allreduce(self.sums, op=hvd.Sum, name="averages of an epoch")
        means = (total[2:] / total[0]).tolist()
        result, start = [], 0
        for group in self._parts.metrics:
            result.append(means[start : start + len(group)])
            start += len(group)
        loss = self._compute_mean(total) if total[0] else math.nan
        if total[0]:
            self.counted.fill_values(result)
        skipped = {"skipped_steps": int(total[-1])} if self._counts_skipped else {}
        return make_results(loss, result, self._parts) | skipped

    def _compute_mean(self, sums: torch.Tensor) -> float:
        """Return the loss."""
        of_labels = sums[2 + self._metrics :][: 2 * len(self._parts.losses)].reshape(-1, 2)
        by_label = sum(float(loss / divisor) for loss, divisor in of_labels if divisor)
        return float(sums[1] / sums[0]) + by_label if sums[0] else by_label


def make_results(loss: float, metrics: list[list[Any]], parts: TorchParts) -> dict[str, Any]:
    """Return a part of a history's entry: Horovod's ``loss`` and ``all_metrics``, and the metrics by name if there
    are any.

    Args:
        metrics: [labels][metrics] values.
        parts: have the names of both.
    """
    named = key_by_name(parts.metric_names, metrics)
    return {"loss": loss, "all_metrics": group_values(parts.labels, metrics), **({"metrics": named} if named else {})}


def sum_over_ranks(numbers: list[float]) -> list[float]:
    """Return their sums over all ranks, place by place. A collective."""
    sums = hvd.allreduce(torch.tensor(numbers, dtype=torch.float64), op=hvd.Sum, name="what losses divide by")
    return [float(value) for value in sums]
