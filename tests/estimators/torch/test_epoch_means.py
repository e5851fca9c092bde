"""Means over an epoch's rows: batches count by their rows, and what has no rows does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.epoch_means import EpochMeans, total
from spark_estimator.estimators.torch.losses import TorchParts


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_sums_are_over_all_ranks() -> None:
    assert total([0.5, 2.0]) == [0.5, 2.0]


def wrong(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output != label).double().mean()


def test_batches_count_by_their_rows() -> None:
    parts = TorchParts(
        model=torch.nn.Linear(1, 1),
        optimizer=torch.optim.SGD([torch.zeros(1)], lr=1.0),
        losses=[torch.nn.MSELoss()],
        loss_weights=[1.0],
        metrics=[[wrong]],
        metric_names=[["wrong"]],
        labels=["y"],
    )
    sums = EpochMeans(parts)
    assert sums.loss is None
    labels = [torch.tensor([1.0, 1.0])]
    sums.add(torch.tensor(2.0), [torch.tensor([1.0, 0.0])], labels, 2)
    sums.add(torch.tensor(8.0), [torch.tensor([1.0])], [torch.tensor([1.0])], 1)
    sums.add(torch.tensor(torch.nan), [torch.tensor([0.0])], [torch.tensor([1.0])], 0)  # a row that does not count
    assert (sums.rows, sums.loss) == (3, 4.0)
    averages = sums.averages()
    assert averages["loss"] == 4.0
    assert averages["metrics"]["wrong"] == pytest.approx(1 / 3)
    again = EpochMeans(parts)
    again.taken(sums.sums)
    assert (again.rows, again.loss, again.averages()) == (3, 4.0, averages)
