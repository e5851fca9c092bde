"""A step of a PyTorch model on the first rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow
import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.estimators.rows.shapes import Fields, LabelError
from spark_estimator.estimators.torch.check import TorchTrial, count_inputs, get_floating_type
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from tests.estimators.specs import X, Y

FIELDS = Fields((X,), (Y,), None)


def rows(count: int = 4) -> pyarrow.RecordBatch:
    values = [[[float(n)] * 3 for n in range(count)], [float(n) for n in range(count)]]
    arrays = [pyarrow.array(column).cast(kind) for column, kind in zip(values, KINDS, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, names=["c0", "c1"])


KINDS = (pyarrow.list_(pyarrow.float32()), pyarrow.float32())


def run(net: nn.Module, loss: Any = None, metrics: Any = (), count: int = 4) -> tuple[int, ...]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    return TorchTrial(TorchParts(net, optimizer, [loss or nn.MSELoss()], [1.0], [list(metrics)])).run(
        rows(count), FIELDS
    )


def test_a_first_layer_of_another_width_is_named() -> None:
    words = r"the features 'x' have 3 values a row, and the model's first layer, 0, takes 2\. Change its in_features"
    with pytest.raises(DataError, match=words):
        run(nn.Sequential(nn.Linear(2, 1)))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 1)))


class Takes(nn.Module):
    def forward(self, first: Any, second: Any, third: Any = None) -> Any: ...


class TakesAll(nn.Module):
    def forward(self, first: Any, *others: Any) -> Any: ...


def test_inputs_are_the_positional_arguments() -> None:
    assert count_inputs(nn.Linear(1, 1)) == (1, 1)
    assert count_inputs(Takes()) == (2, 3)
    assert count_inputs(TakesAll()) == (1, math.inf)
    assert count_inputs(torch.compile(Takes(), backend="eager")) == (2, 3)  # type: ignore[arg-type]


def test_a_double_makes_inputs_doubles() -> None:
    assert get_floating_type(nn.Linear(1, 1)) == "float32"
    assert get_floating_type(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())) == "float64"


def test_a_step_of_a_copy_leaves_model_and_random_numbers_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    assert run(net) == (1,)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and net[0].weight.grad is None
    assert run(net, count=1) == (1,), "a single row goes through the batch normalization of an evaluation"


@pytest.mark.parametrize(
    ("net", "loss", "metrics", "words"),
    [
        (nn.Linear(3, 1), nn.L1Loss(reduction="none"), [], r"the loss has the shape \[4, 1\]; it has to be one number"),
        (nn.Linear(3, 1).bfloat16(), None, [], "weight is of bfloat16, and rows come as float32: leave the model in"),
        (nn.Linear(3, 1), nn.CrossEntropyLoss(), [], "output for 'y' has one, so that the loss would always be 0"),
        (nn.Linear(3, 1), None, [lambda output, label: "no number"], "returned 'no number', and not one number"),
        (nn.Flatten(0), lambda output, label: output.mean() + 0 * label.sum(), [], r"returned \[12\] for a batch of 4"),
        (nn.Linear(3, 1), lambda output, label: output.mean() / 0, [], "the model computes it so from finite numbers"),
    ],
)
def test_what_would_fail_on_the_ranks_fails_here(net: nn.Module, loss: Any, metrics: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        run(net, loss, metrics)


def test_steps_that_are_skipped_may_be_among_the_first_rows() -> None:
    net = nn.Linear(3, 1)
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]])
    spoiled = rows().set_column(1, "c1", pyarrow.array([1.0, math.nan, 2.0, 3.0], pyarrow.float32()))
    with pytest.raises(DataError, match="the loss of the first 4 rows is nan"):
        TorchTrial(parts).run(spoiled, FIELDS)
    assert TorchTrial(replace(parts, recipe=StepRecipe(skips=True))).run(spoiled, FIELDS) == (1,)


def test_channels_last_is_for_images() -> None:
    net = nn.Linear(3, 1)
    recipe = StepRecipe(channels_last=True)
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), 0.1), [nn.MSELoss()], [1.0], [[]], recipe=recipe)
    with pytest.raises(DataError, match=r"channels_last=True needs images.*inputs were x: float32\[-1, 3\]"):
        TorchTrial(parts).run(rows(), FIELDS)


def test_the_label_whose_loss_fails_is_named() -> None:
    with pytest.raises(LabelError) as caught:
        run(nn.Linear(3, 2), nn.CrossEntropyLoss())  # whose labels are integers
    assert list(caught.value.errors) == [0] and "Long" in str(caught.value.errors[0])


class Binary(nn.Module):
    """Returns values from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.factor * x[:, :1] / 4).clamp(0, 1)


def test_torchmetrics_objects_are_computed_here() -> None:
    """What their update does not check, they raise when they are computed: after an epoch, on the ranks."""
    metrics: Any = pytest.importorskip("torchmetrics")
    classes = metrics.classification
    for count in (1, 4):
        assert run(Binary(), metrics=[metrics.R2Score()], count=count) == (1,)
    for metric, words in (
        (
            metrics.KendallRankCorrCoef(),
            "the metric KendallRankCorrCoef raised IndexError: .* output .4, 1. and the la",
        ),
        (
            classes.MulticlassF1Score(num_classes=3),
            r"MulticlassF1Score raised .*output \[4, 1\] and the labels \[4, 1\]",
        ),
        (metrics.wrappers.MinMaxMetric(metrics.R2Score()), r"MinMaxMetric returned {'raw.*not one tensor of numbers"),
    ):
        with pytest.raises(DataError, match=words):
            run(Binary(), metrics=[metric])
        assert metric.update_count == 0
    per_class = metrics.MeanSquaredError(num_outputs=2)
    net = nn.Sequential(nn.Linear(3, 2))
    labels = torch.zeros(4, 2)
    parts = TorchParts(
        net, torch.optim.SGD(net.parameters(), 0.1), [lambda output, _: output.mean()], [1.0], [[per_class]]
    )
    batch, fields = rows(), Fields((X,), (replace(Y, widths=(2,), shape=(2,)),), None)
    pairs = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(labels.reshape(-1).numpy()), 2)
    batch = pyarrow.RecordBatch.from_arrays([batch.column(0), pairs], names=["c0", "c1"])
    assert TorchTrial(parts).run(batch, fields) == (2,), "a list in the history"
    with pytest.raises(DataError, match=r"MeanSquaredError returned tensor.* and not one number"):
        TorchTrial(parts, [None, "train.MeanSquaredError"]).run(batch, fields)
    with pytest.raises(DataError, match=r"MeanSquaredError returned tensor.* and not one number"):
        TorchTrial(parts, counts=lambda _: False).run(batch, fields)
