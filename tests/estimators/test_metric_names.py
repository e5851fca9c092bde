"""The names of PyTorch metrics: their source, and that none occurs twice."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator.estimators.metric_names import group_metrics, group_values, key_by_name, name_metrics


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == label).float().mean()


class BinaryAccuracy(nn.Module):
    """Like a metric of torchmetrics: a module that is called."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((output > 0.5) == (label > 0.5)).float().mean()


class NamedMetric(BinaryAccuracy):
    name = "share right"


def test_a_metric_is_called_by_its_name_its_class_or_its_position() -> None:
    metrics: list[Any] = [
        lambda output, label: output.mean(),
        accuracy,
        BinaryAccuracy(),
        NamedMetric(),
        functools.partial(accuracy),
        nn.functional.l1_loss,
        functools.partial(lambda output, label: output),
    ]
    assert name_metrics([metrics]) == [
        ["metric_1", "accuracy", "BinaryAccuracy", "share right", "accuracy_2", "l1_loss", "metric_7"]
    ]


def test_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    assert name_metrics([[torchmetrics.Accuracy(task="binary"), torchmetrics.MeanSquaredError()]]) == [
        ["BinaryAccuracy", "MeanSquaredError"]
    ]


def test_no_name_occurs_twice_or_is_a_column_of_the_history() -> None:
    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return output.mean()

    def accuracy_2(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return output.mean()

    assert name_metrics([[loss, accuracy, accuracy_2, accuracy]]) == [
        ["loss_2", "accuracy", "accuracy_2", "accuracy_3"]
    ]


def test_groups_of_labels() -> None:
    assert group_metrics([accuracy], ["y"]) == ([[accuracy]], [["accuracy"]])
    assert group_metrics([], ["y", "z"]) == ([[], []], [[], []])
    assert group_metrics([accuracy], ["y", "z"]) == ([[accuracy]] * 2, [["y_accuracy"], ["z_accuracy"]])
    assert group_metrics([{"right": accuracy}, {}], ["y", "z"]) == ([[accuracy], []], [["y_right"], []])
    assert group_metrics([{"right": accuracy}], ["y"]) == ([[accuracy]], [["right"]])
    assert group_metrics([{"right": accuracy}], ["y", "z"]) == ([[accuracy]] * 2, [["y_right"], ["z_right"]])
    assert group_metrics([{"right": accuracy}, [accuracy]], ["y", "z"])[1] == [["y_right"], ["z_accuracy"]]
    with pytest.raises(ValueError, match="3 dicts for 2 label columns"):
        group_metrics([{"right": accuracy}, {}, {}], ["y", "z"])
    with pytest.raises(TypeError, match="their names; got 1"):
        group_metrics([{1: accuracy}], ["y"])


def test_groups_of_horovod() -> None:
    """Each list has one function for all label columns, or one for each."""

    def error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (output - label).abs().mean()

    assert group_metrics([[accuracy], [error]], ["y"]) == ([[accuracy, error]], [["accuracy", "error"]])
    functions, names = group_metrics([[accuracy, error], [error]], ["y", "z"])
    assert functions == [[accuracy, error], [error, error]]
    assert names == [["y_accuracy", "y_error"], ["z_error", "z_error_2"]]
    with pytest.raises(ValueError, match=r"metrics\[1\] has 2 functions for 3 label columns"):
        group_metrics([[accuracy], [accuracy, error]], ["x", "y", "z"])
    assert group_values(["y", "z"], [[0.5, 2.0], [0.25, 1.0]]) == [
        {"group_0_y": 0.5, "group_0_z": 0.25},
        {"group_1_y": 2.0, "group_1_z": 1.0},
    ]
    assert group_values(["y", "z"], [[0.5], []]) == [{"group_0_y": 0.5}]
    assert group_values(["y"], [[]]) == []


def test_values_by_name() -> None:
    assert key_by_name([["y_accuracy"], ["z_accuracy", "mae"]], [[0.5], [0.25, 2.0]]) == {
        "y_accuracy": 0.5,
        "z_accuracy": 0.25,
        "mae": 2.0,
    }
    assert key_by_name([[]], [[]]) == {}
