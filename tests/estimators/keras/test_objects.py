"""Keras' objects as bytes: models, losses, optimizers, the user's classes."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError
from spark_estimator.estimators.keras.objects import (
    Recipe,
    compute_digest,
    dump_model,
    find_custom_objects,
    get_values,
    keep_rng_state,
    load_dumped,
    pack,
    unpack,
)


class Doubled(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return 2 * x


def network(*layers: Any) -> Any:
    return keras.Sequential([keras.layers.Input((2,)), *layers, keras.layers.Dense(1)])


def test_a_model_comes_back_with_its_weights() -> None:
    net = network()
    again = load_dumped(dump_model(net), {})
    assert again is not net
    for value, other in zip(get_values(net.weights), get_values(again.weights), strict=True):
        assert numpy.array_equal(value, other)
    with pytest.raises(DataError, match="Keras cannot load the model"):
        load_dumped(b"no file", {})


def test_digests_are_of_architecture_and_weights() -> None:
    net = network()
    digest = compute_digest(dump_model(net), net)
    assert digest == compute_digest(dump_model(net), net) and len(digest) == 32, "a file's time is not in it"
    net.layers[-1].kernel.assign(net.layers[-1].kernel + 1)
    assert digest != compute_digest(dump_model(net), net)


def test_the_user_s_classes_are_found_in_a_model() -> None:
    def mine(y: Any, output: Any) -> Any:
        return output

    objects = find_custom_objects(network(Doubled()), mine)
    assert Doubled in objects.values() and mine in objects.values()
    assert keras.layers.Dense not in objects.values()


class Scaled(keras.layers.Layer):  # type: ignore[misc]
    """Keras wraps its build() in a function that holds the layer."""

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.factor


def test_a_layer_with_its_own_build_is_sent_as_a_class_alone() -> None:
    objects = find_custom_objects(network(Scaled()))
    assert Scaled in objects.values() and "build" not in objects
    assert b"_unpickle_model" not in pack("custom_objects", objects)


def test_opened_objects_are_new() -> None:
    optimizer = keras.optimizers.SGD(0.25)
    content = pack("the optimizer", [optimizer, keras.losses.MeanSquaredError()])
    again, loss = unpack(content)
    assert again is not optimizer and float(keras.ops.convert_to_numpy(again.learning_rate)) == 0.25
    assert isinstance(loss, keras.losses.MeanSquaredError)
    with pytest.raises(DataError, match="callbacks cannot be sent to the processes: TypeError"):
        pack("callbacks", [threading.Lock()])


class Pinball(keras.losses.Loss):  # type: ignore[misc]
    """A loss of the user's without get_config()."""

    def __init__(self, quantile: float = 0.5, penalty: Any = None) -> None:
        super().__init__()
        self.quantile = quantile
        self.penalty = penalty

    def call(self, y: Any, output: Any) -> Any:
        error = y - output
        return keras.ops.mean(keras.ops.maximum(self.quantile * error, (self.quantile - 1) * error) + self.penalty(y))


class Above(keras.metrics.Mean):  # type: ignore[misc]
    """A metric of the user's without get_config()."""

    def __init__(self, threshold: float = 0.0, name: str = "above", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.threshold = threshold

    def update_state(self, y: Any, output: Any, sample_weight: Any = None) -> Any:
        return super().update_state(output > self.threshold)


class Positive(keras.metrics.Metric):  # type: ignore[misc]
    """A metric of the user's with few arguments, one of them required."""

    def __init__(self, scale: Any) -> None:
        super().__init__(name="positive")
        self.scale = scale
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y: Any, output: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.convert_to_tensor(output, "float32") * self.scale))

    def result(self) -> Any:
        return self.total


class Perceptual(keras.losses.Loss):  # type: ignore[misc]
    """A loss that compares a network's results for labels and outputs."""

    def __init__(self, features: Any = None) -> None:
        super().__init__()
        self.features = features or network()
        self.weight = keras.Variable(3.0)

    def call(self, y: Any, output: Any) -> Any:
        return self.weight * keras.ops.mean(keras.ops.abs(self.features(y) - self.features(output)))


def test_losses_and_metrics_keep_settings_that_their_configurations_lack() -> None:
    labels, outputs = numpy.array([[0.0, 3.0], [1.0, 1.0]]), numpy.array([[2.0, 1.0], [0.5, 2.0]])
    losses = [
        keras.losses.Huber(0.5),
        keras.losses.CosineSimilarity(axis=0),
        keras.losses.MeanSquaredError(dtype="float64"),
        Pinball(0.9, lambda y: 10.0),
        Perceptual(network()),
    ]
    for loss, again in zip(losses, unpack(pack("losses", losses)), strict=True):
        assert again is not loss and again.dtype == loss.dtype
        assert float(again(labels, outputs)) == float(loss(labels, outputs)), loss
    score = keras.metrics.F1Score(average="micro", threshold=0.75)
    score(labels, outputs)  # which builds it
    score.reset_state()
    scales = [Positive(numpy.array([1.0, 10.0])), Positive(numpy.float32(10.0))]
    metrics = [keras.metrics.CosineSimilarity(axis=0), Above(1.5), score, *scales]
    for metric, again in zip(metrics, unpack(pack("metrics", metrics)), strict=True):
        assert float(again(labels, outputs)) == float(metric(labels, outputs)), metric


def test_an_optimizer_whose_configuration_lacks_a_setting() -> None:
    class Tilted(keras.optimizers.SGD):  # type: ignore[misc]
        def __init__(self, learning_rate: float = 0.1, tilt: float = 0.0, **settings: Any) -> None:
            super().__init__(learning_rate, **settings)
            self.tilt = tilt

    assert unpack(pack("the optimizer", Tilted(0.5))).tilt == 0.0
    with pytest.raises(DataError, match=r"the optimizer cannot be sent .* class Tilted lacks 'tilt', which is 0\.25"):
        pack("the optimizer", Tilted(0.5, tilt=0.25))


def test_a_recipe_restores_the_optimizer_s_state() -> None:
    net = network()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(net.trainable_variables)
    state = [value + 1 for value in get_values(optimizer.variables)]
    for kept, restored in ((state, True), (state[:1], False), (None, False)):
        again = load_dumped(dump_model(net), {})
        recipe = Recipe(keras.optimizers.SGD(0.1, momentum=0.9), kept, "mse", None, None, None)
        recipe.compile(again)
        recipe.restore(again)
        values = get_values(again.optimizer.variables)
        assert all(numpy.array_equal(value, other) for value, other in zip(values, state, strict=True)) is restored


def test_random_numbers_are_as_before() -> None:
    random.seed(1)
    numpy.random.seed(1)
    first = (random.random(), numpy.random.random())
    random.seed(1)
    numpy.random.seed(1)
    with keep_rng_state():
        random.random(), numpy.random.random()
    assert (random.random(), numpy.random.random()) == first
