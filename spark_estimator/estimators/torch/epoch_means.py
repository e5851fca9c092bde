"""Loss and metrics of an epoch as means over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.losses import Tensors, TorchParts
from spark_estimator.estimators.torch.metric_names import by_group, by_name


class EpochMeans:
    """Loss and metrics over the rows of an epoch.

    Attributes:
        sums: [2 + metrics] rows, loss and metrics of this rank, on the CPU; changed in place.
    """

    def __init__(self, parts: TorchParts) -> None:
        self._parts = parts
        count = sum(len(group) for group in parts.metrics)
        self.sums = torch.zeros(2 + count, dtype=torch.float64)
        # The first two of `sums` as Python's numbers, which are cheaper to read in each step.
        self._rows = 0
        self._loss = 0.0

    def clear(self) -> None:
        """No rows were counted."""
        self.sums.zero_()
        self._rows, self._loss = 0, 0.0

    def taken(self, sums: torch.Tensor) -> None:
        """Restores the sums of rows that were counted before."""
        self.sums.copy_(sums)
        self._rows, self._loss = int(sums[0]), float(sums[1])

    @property
    def rows(self) -> int:
        """Of this rank so far."""
        return self._rows

    @property
    def loss(self) -> float | None:
        """The mean over this rank's rows so far."""
        return self._loss / self._rows if self._rows else None

    def add(self, loss: torch.Tensor, outputs: Tensors, labels: Tensors, rows: int) -> None:
        """Counts a batch."""
        if not rows:
            return
        values = [loss.detach()]
        with torch.no_grad():
            for group, output, label in zip(self._parts.metrics, outputs, labels, strict=True):
                values += [torch.as_tensor(metric(output.detach(), label)) for metric in group]
        numbers = [float(value) for value in values]
        self._rows += rows
        self._loss += numbers[0] * rows
        self.sums[0] += rows
        for place, number in enumerate(numbers):
            self.sums[place + 1] += number * rows

    def averages(self) -> dict[str, Any]:
        """Over the rows of all ranks. A collective."""
        total = hvd.allreduce(self.sums, op=hvd.Sum, name="averages of an epoch")
        means = (total[1:] / total[0]).tolist()
        result, place = [], 1
        for group in self._parts.metrics:
            result.append(means[place : place + len(group)])
            place += len(group)
        return results_of(means[0], result, self._parts)


def results_of(loss: float, metrics: list[list[float]], parts: TorchParts) -> dict[str, Any]:
    """A part of a history's entry: Horovod's ``loss`` and ``all_metrics``, and the metrics by name where there are any.

    Args:
        metrics: [labels][metrics] values.
        parts: have the names of both.
    """
    named = by_name(parts.metric_names, metrics)
    return {"loss": loss, "all_metrics": by_group(parts.labels, metrics), **({"metrics": named} if named else {})}


def total(numbers: list[float]) -> list[float]:
    """Their sums over all ranks, place by place. A collective."""
    sums = hvd.allreduce(torch.tensor(numbers, dtype=torch.float64), op=hvd.Sum, name="what losses divide by")
    return [float(value) for value in sums]
