"""torchmetrics over the ranks: where a metric is computed, it finds the states of all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torchmetrics import Metric, MetricCollection

import spark_estimator.torch as hvd
from spark_estimator.collectives import context


def has_other_ranks() -> bool:
    """Return whether there are other ranks; torchmetrics' ``distributed_available_fn``."""
    return context.is_initialized() and context.size() > 1


def gather(state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Return a state of all ranks, in rank order; torchmetrics' ``dist_sync_fn``. Collective.

    Args:
        state: its shape may differ between ranks, also in the number of dimensions (a rank without data).
        group: not used: the metric's ranks are those of the job.
    """
    kinds = hvd.allgather_object((tuple(state.shape), str(state.dtype)))
    if len({dtype for _, dtype in kinds}) > 1:  # a rank without data does not know the type of what others have
        everything = hvd.allgather_object(state.detach().cpu())
        states = [other.to(state.device) for other in everything]
    else:
        flat_states = hvd.allgather(state.detach().reshape(-1)).split([math.prod(shape) for shape, _ in kinds])
        states = [flat_state.reshape(shape) for flat_state, (shape, _) in zip(flat_states, kinds, strict=True)]
    states[context.rank()] = state  # with its gradient, if it has one
    return states


class SyncedMetrics:
    """Has the metrics in a module synced over the ranks, until `release`.

    A metric with a user's ``dist_sync_fn`` keeps it.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Metric, Any]] = []

    def adopt(self, module: torch.nn.Module) -> None:
        """Add the metrics that the module has now, and that were not there before."""
        for metric in iterate_metrics(module):
            if metric.dist_sync_fn is None:
                self._before.append((metric, metric.distributed_available_fn))
                metric.dist_sync_fn = gather
                metric.distributed_available_fn = has_other_ranks

    def release(self) -> None:
        """Leaves the metrics as they were: one that is pickled must not need this package."""
        for metric, available in self._before:
            metric.dist_sync_fn = None
            metric.distributed_available_fn = available
        self._before.clear()


def iterate_metrics(module: torch.nn.Module) -> Iterator[Metric]:
    """Yield the metrics of torchmetrics among a module's parts."""
    return (child for child in module.modules() if isinstance(child, Metric))


def iterate_collections(module: torch.nn.Module) -> Iterator[MetricCollection]:
    """Yield the collections of such metrics among a module's parts."""
    return (child for child in module.modules() if isinstance(child, MetricCollection))
