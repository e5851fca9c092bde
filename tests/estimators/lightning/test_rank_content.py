"""Metrics that take over the states of those of a lost rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import torchmetrics
from torchmetrics import classification

from spark_estimator.estimators.lightning.rank_content import _add_to_metric

VALUES = [torch.tensor([0.1, 0.7, 0.4]), torch.tensor([0.9]), torch.tensor([0.2, 0.3])]
LABELS = [torch.tensor([0, 1, 1]), torch.tensor([1]), torch.tensor([0, 0])]


@pytest.mark.parametrize(
    "make",
    [
        torchmetrics.SumMetric,
        torchmetrics.MeanMetric,
        torchmetrics.MaxMetric,
        torchmetrics.MinMetric,
        torchmetrics.CatMetric,
        torchmetrics.MeanSquaredError,
        classification.BinaryAUROC,
        classification.BinaryAccuracy,
    ],
)
def test_two_metrics_become_that_of_all_rows(make: Callable[[], Any]) -> None:
    mine, lost, whole = make(), make(), make()

    def update(metric: Any, place: int) -> None:
        is_of_labels = not isinstance(metric, torchmetrics.aggregation.BaseAggregator)
        metric.update(VALUES[place], *([LABELS[place]] if is_of_labels else []))

    for metric, places in ((mine, (0, 1)), (lost, (2,)), (whole, (0, 1, 2))):
        for place in places:
            update(metric, place)
    mine.compute()  # what it has computed before is forgotten
    _add_to_metric(mine, {name: getattr(lost, name) for name in lost._defaults}, lost._update_count)
    torch.testing.assert_close(mine.compute(), whole.compute())
    assert mine._update_count == 3
    update(mine, 2)
    update(whole, 2)
    torch.testing.assert_close(mine.compute(), whole.compute())
