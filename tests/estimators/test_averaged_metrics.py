"""Metrics of which an epoch's mean over batches is not the metric of all rows: a warning names them."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import sklearn.metrics
import torch
from torch import nn

from spark_estimator import TorchEstimator
from spark_estimator.estimators.averaged_metrics import warn_of_averages
from spark_estimator.lightning.flavours import choose_flavour

functional: Any = pytest.importorskip("torchmetrics.functional")
torchmetrics: Any = pytest.importorskip("torchmetrics")


def rmse(output: Any, label: Any) -> Any:
    return ((output - label) ** 2).mean() ** 0.5


def scored(output: Any, label: Any) -> float:
    return float(sklearn.metrics.roc_auc_score(label, output))


def warned(name: str, metric: Callable[..., Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_averages([(name, metric)], "")
    return caught


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("auc", lambda output, label: 0.5),
        ("auc2", lambda output, label: 0.5),
        ("meanIoU", lambda output, label: 0.5),
        ("val_F1Score", lambda output, label: 0.5),
        ("metric_1", lambda output, label: sklearn.metrics.r2_score(label, output)),
        ("quality", scored),
        ("rmse", rmse),
        ("roc_auc_score", sklearn.metrics.roc_auc_score),
        ("m", sklearn.metrics.f1_score),
        ("m", sklearn.metrics.root_mean_squared_error),
        ("m", functools.partial(functional.auroc, task="binary")),
        ("m", functional.r2_score),
        ("m", functional.recall),
        ("m", functools.partial(functional.mean_squared_error, squared=False)),
        ("m", torchmetrics.MeanSquaredError(squared=False)),
        ("m", torchmetrics.classification.BinaryAUROC()),
        ("m", torchmetrics.classification.MulticlassF1Score(3)),
        ("m", torchmetrics.R2Score()),
        ("m", torchmetrics.PearsonCorrCoef()),
    ],
)
def test_known_ones_are_named(name: str, metric: Callable[..., Any]) -> None:
    (warning,) = warned(name, metric)
    assert f"metrics: {name}: an epoch's value is the mean of its batches' values" in str(warning.message)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("accuracy", lambda output, label: (output.argmax(1) == label).float().mean()),
        ("val_loss", nn.functional.mse_loss),
        ("autocast", lambda output, label: 0.5),
        ("m", nn.L1Loss()),
        ("m", functional.mean_squared_error),
        ("m", functools.partial(functional.accuracy, task="binary")),
        ("m", torchmetrics.MeanSquaredError()),
        ("m", torchmetrics.classification.BinaryAccuracy()),
        *(
            ("m", getattr(sklearn.metrics, name))
            for name in ("accuracy_score", "log_loss", "mean_absolute_error", "mean_squared_error", "hamming_loss")
        ),
    ],
)
def test_means_are_not(name: str, metric: Callable[..., Any]) -> None:
    assert not warned(name, metric)


def test_the_mean_over_batches_differs() -> None:
    """Else there were nothing to warn of."""
    random = numpy.random.default_rng(1)
    labels = random.integers(0, 2, 200)
    scores = labels + random.normal(0, 1.5, 200)
    batches = [scored(scores[start : start + 20], labels[start : start + 20]) for start in range(0, 200, 20)]
    assert abs(numpy.mean(batches) - scored(scores, labels)) > 0.005


def line_above() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno - 1


def test_an_estimator_of_pytorch_warns_at_the_call_of_fit() -> None:
    net = nn.Linear(2, 1)
    made = TorchEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), 0.1),
        loss=nn.MSELoss(),
        label_cols=["y", "z"],
        metrics=[{"mae": nn.L1Loss()}, {"r2": functional.r2_score}],
    )
    with pytest.warns(UserWarning, match=r"metrics: z_r2: .*transform\(rows\)") as caught:
        with pytest.raises(TypeError):
            made.fit(None)  # type: ignore[call-overload]
        with pytest.raises(Exception, match="DataFrame"):
            made._fit(None)  # type: ignore[arg-type]
        number = line_above()
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, number)]


def test_a_plain_module_of_lightning_s_estimator_warns_and_a_lightning_module_does_not() -> None:
    pytest.importorskip(choose_flavour())
    from spark_estimator.lightning import TorchEstimator as LightningEstimator

    net = nn.Linear(2, 1)
    with pytest.warns(UserWarning, match="metrics: f1_score: "):
        LightningEstimator(
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), 0.1),
            loss=nn.MSELoss(),
            label_cols=["y"],
            metrics=functional.f1_score,
        )._make_training()
