"""Means over an epoch: batches count by their rows, or by the labels that count; what has no rows does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.epoch_means import EpochMeans, sum_over_ranks
from spark_estimator.estimators.torch.losses import JointLoss, TorchParts, compute_joint_loss


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_sums_are_over_all_ranks() -> None:
    assert sum_over_ranks([0.5, 2.0]) == [0.5, 2.0]


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
    sums.add(JointLoss(torch.tensor(2.0)), [torch.tensor([1.0, 0.0])], labels, 2)
    sums.add(JointLoss(torch.tensor(8.0)), [torch.tensor([1.0])], [torch.tensor([1.0])], 1)
    sums.add(
        JointLoss(torch.tensor(torch.nan)), [torch.tensor([0.0])], [torch.tensor([1.0])], 0
    )  # a row that does not count
    assert (sums.rows, sums.loss) == (3, 4.0)
    averages = sums.compute_averages()
    assert averages["loss"] == 4.0
    assert averages["metrics"]["wrong"] == pytest.approx(1 / 3)
    again = EpochMeans(parts)
    again.restore(sums.get_state())
    assert (again.rows, again.loss, again.compute_averages()) == (3, 4.0, averages)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0])], ids=["tokens", "classes"])
def test_the_loss_does_not_depend_on_the_batches(size: int, weight: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    loss = torch.nn.CrossEntropyLoss(weight=weight)
    parts = TorchParts(
        model=torch.nn.Linear(1, 1),
        optimizer=torch.optim.SGD([torch.zeros(1)], lr=1.0),
        losses=[torch.nn.MSELoss(), loss],
        loss_weights=[0.5, 2.0],
        metrics=[[], []],
        labels=["x", "y"],
        leaving_out=frozenset([1]),
    )
    outputs = [torch.randn(5, 1), torch.randn(5, 3, 4)]
    labels = [torch.randn(5, 1), torch.randint(0, 3, (5, 4))]
    labels[1][0, 1:] = labels[1][3] = -100
    sums = EpochMeans(parts)
    for start in range(0, 5, size):
        of_batch = (
            [output[start : start + size] for output in outputs],
            [label[start : start + size] for label in labels],
        )
        rows = len(of_batch[0][0])
        sums.add(compute_joint_loss(parts, *of_batch, None, rows, list), *of_batch, rows)
    whole = 0.5 * torch.nn.functional.mse_loss(outputs[0], labels[0]) + 2 * loss(outputs[1], labels[1])
    assert sums.compute_averages()["loss"] == pytest.approx(whole.item())
    again = EpochMeans(parts)
    again.restore(sums.get_state())
    assert again.compute_averages() == sums.compute_averages() and again.loss == pytest.approx(whole.item())
