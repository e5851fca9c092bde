"""Metrics of torchmetrics over the ranks: which are synced, and states of all ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torchmetrics")

import torch
import torchmetrics
from torch import nn

from spark_estimator.lightning import metrics
from tests.torch.rank_pool import RankPool


def test_metrics_are_synced_until_they_are_released() -> None:
    module = nn.ModuleList([torchmetrics.SumMetric(), nn.ModuleList([torchmetrics.MeanMetric()])])
    custom = torchmetrics.SumMetric(dist_sync_fn=lambda state, group: [state])
    module.append(custom)
    before = [(metric.dist_sync_fn, metric.distributed_available_fn) for metric in metrics.iterate_metrics(module)]
    synced = metrics.SyncedMetrics()
    for _ in range(2):
        synced.adopt(module)
    assert [metric.dist_sync_fn is metrics.gather for metric in metrics.iterate_metrics(module)] == [True, True, False]
    synced.release()
    assert [
        (metric.dist_sync_fn, metric.distributed_available_fn) for metric in metrics.iterate_metrics(module)
    ] == before


def test_without_other_ranks_there_is_nothing_to_sync() -> None:
    assert not metrics.has_other_ranks()


def test_states_of_all_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        assert metrics.has_other_ranks()
        states = metrics.gather(torch.full((rank + 1, 2), float(rank)))
        assert [tuple(state.shape) for state in states] == [(1, 2), (2, 2)]
        assert [state.unique().tolist() for state in states] == [[0.0], [1.0]]
        # A rank without data has a state of another shape and type.
        mine = torch.empty(0) if rank else torch.tensor([[3, 4]])
        states = metrics.gather(mine)
        assert states[rank] is mine
        assert [state.tolist() for state in states] == [[[3, 4]], []]

    two_ranks.run(check)
