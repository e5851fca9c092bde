"""torchmetrics over the ranks: where a metric is computed, it finds the states of all ranks.

In the middle of an epoch, the states of a rank are read and restored as plain values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
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

    def adopt(self, module: nn.Module) -> None:
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


def iterate_metrics(module: nn.Module) -> Iterator[Metric]:
    """Yield the metrics of torchmetrics among a module's parts."""
    return (child for child in module.modules() if isinstance(child, Metric))


def iterate_collections(module: nn.Module) -> Iterator[MetricCollection]:
    """Yield the collections of such metrics among a module's parts."""
    return (child for child in module.modules() if isinstance(child, MetricCollection))


def get_metric_states(module: nn.Module) -> list[dict[str, Any]]:
    """Return [metrics of torchmetrics in a module] the plain attributes of each: its states, and how often it was
    updated.
    """
    for collection in iterate_collections(module):
        list(collection.items())  # metrics of a group have one state, of which each gets a copy
    return [
        {name: _detach(value) for name, value in vars(metric).items() if _is_plain(value)}
        for metric in iterate_metrics(module)
    ]


def take_metric_states(module: nn.Module, states: list[dict[str, Any]]) -> None:
    """Restore what `get_metric_states` returned."""
    for metric, state in zip(iterate_metrics(module), states, strict=False):
        for name, value in state.items():
            vars(metric)[name] = _move_to(value, metric.device)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, torch.Tensor) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def _detach(value: Any) -> Any:
    if isinstance(value, list):
        return [item.detach() for item in value]
    return value.detach() if isinstance(value, torch.Tensor) else value


def _move_to(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [item.to(device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value
