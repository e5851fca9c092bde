"""A step of a Keras model on the first rows."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError, KerasEstimator
from spark_estimator.estimators.keras.check import KerasTrial
from spark_estimator.estimators.keras.parts import make_parts
from spark_estimator.estimators.rows.shapes import Fields, MetricError
from tests.estimators.specs import X, Y

FIELDS = Fields((X,), (Y,), None)


def trial_of(net: Any, loss: Any = "mse", optimizer: str = "sgd", **parameters: Any) -> KerasTrial:
    estimator = KerasEstimator(model=net, optimizer=optimizer, loss=loss, label_cols=["y"], **parameters)
    return KerasTrial(make_parts(estimator._value)[0], net, {})


def rows(label: float = 1.0) -> pyarrow.RecordBatch:
    features = pyarrow.array([[1.0, 2.0, 3.0]] * 4, pyarrow.list_(pyarrow.float32()))
    return pyarrow.RecordBatch.from_arrays(
        [features, pyarrow.array([label] * 4, pyarrow.float32())], names=["c0", "c1"]
    )


def network(outputs: int, **options: Any) -> Any:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(outputs, **options)])


def test_a_step_leaves_the_model_as_it_is() -> None:
    net = network(2)
    before = net.get_weights()
    trial = trial_of(net, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert trial.count_positional() == (1, 1) and trial.run(rows(), FIELDS) == (2,)
    assert all(numpy.array_equal(value, other) for value, other in zip(before, net.get_weights(), strict=True))


def test_the_optimizer_s_state_counts_as_part_of_the_model_that_comes_back() -> None:
    trial = trial_of(network(1), optimizer="adam")
    trial.run(rows(), FIELDS)
    weights = 4 * 4
    assert 3 * weights <= trial.state_bytes <= 3 * weights + 16, "two moments of each weight, a rate and a step"


def test_what_would_fail_on_the_ranks_fails_here() -> None:
    inputs = keras.Input((3,))
    two = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    for trial, label, words in (
        (trial_of(two), 1.0, "returns 2 outputs, and there are 1 label columns"),
        (trial_of(network(2), "sparse_categorical_crossentropy"), 4.0, "'y' contains class 4, .* has 2 classes"),
        (trial_of(network(1)), float("inf"), r"the loss of the first 4 rows is (inf|nan): column 'y' contains inf"),
    ):
        with pytest.raises(DataError, match=words):
            trial.run(rows(label), FIELDS)


class OfTensors(keras.metrics.Mean):
    """Refuses what Keras' own fit does not give to a metric."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not (keras.ops.is_tensor(y_true) and keras.ops.is_tensor(y_pred)):
            raise TypeError(f"no tensors: {type(y_true)} and {type(y_pred)}")
        if self.name == "failing":
            raise AttributeError("no such attribute")
        return super().update_state(keras.ops.abs(y_true - y_pred), sample_weight)


def test_metrics_get_tensors_and_are_named_when_they_fail() -> None:
    assert trial_of(network(1), metrics=[OfTensors(name="own")]).run(rows(), FIELDS) == (1,)
    with pytest.raises(
        MetricError, match=r"a metric failed .* AttributeError: no such attribute\. Metrics get .* tens"
    ):
        trial_of(network(1), metrics=[OfTensors(name="failing")]).run(rows(), FIELDS)
    with pytest.raises(ZeroDivisionError):
        trial_of(network(1), lambda y, p: p / (1 // 0), metrics=["mae"]).run(rows(), FIELDS)
