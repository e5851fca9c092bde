"""Learning rates that are multiplied with the number of ranks, of optimizers of both Keras."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator.keras.importing import is_keras_2
from spark_estimator.keras.optimizers import find_schedule, read_rate
from spark_estimator.keras.rates import list_variables_with_rate, rescale_rate
from spark_estimator.keras.variables import copy_value


def tenth() -> float:
    return 0.1


def kinds() -> list[Any]:
    """A module with optimizers, its package, and an id each."""
    result = [pytest.param(keras, keras.optimizers, id="Keras 3")]
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        tf_keras = pytest.importorskip("tf_keras")
        result.append(pytest.param(tf_keras, tf_keras.optimizers, id="Keras 2"))
        result.append(pytest.param(tf_keras, tf_keras.optimizers.legacy, id="Keras 2, legacy"))
    return result


def net_of(package: Any, optimizer: Any) -> Any:
    """A compiled model; the gradient of its bias is 1."""
    net = package.Sequential([package.layers.Input((1,)), package.layers.Dense(1, kernel_initializer="zeros")])
    net.compile(optimizer, lambda labels, outputs: outputs + 0 * labels)
    return net


def step_of(net: Any) -> float:
    """By how much a step changes the bias."""
    before = float(net.get_weights()[1][0])
    net.train_on_batch(numpy.zeros((1, 1), numpy.float32), numpy.zeros((1, 1), numpy.float32))
    return before - float(net.get_weights()[1][0])


@pytest.mark.parametrize(("package", "optimizers"), kinds())
def test_a_number_is_set(package: Any, optimizers: Any) -> None:
    optimizer = optimizers.SGD(0.5)
    net = net_of(package, optimizer)
    assert step_of(net) == 0.5
    rescale_rate(optimizer, 1, 2)
    assert read_rate(optimizer) == 1 == step_of(net)
    assert float(copy_value(list_variables_with_rate(optimizer)[-1])) == 1
    rescale_rate(optimizer, 2, 3)
    assert read_rate(optimizer) == 1.5 == step_of(net)


@pytest.mark.parametrize(("package", "optimizers"), kinds())
def test_a_schedule_s_values_are_multiplied_and_its_configuration_stays(
    package: Any, optimizers: Any, tmp_path: Path
) -> None:
    plain = package.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.25, 0.125])
    optimizer = optimizers.SGD(plain)
    net = net_of(package, optimizer)
    net.build((None, 1))
    rescale_rate(optimizer, 1, 2)
    assert [step_of(net) for _ in range(2)] == [1.0, 0.5]
    made = find_schedule(optimizer)
    assert type(made).__name__ == "PiecewiseConstantDecay" and isinstance(made, type(plain)) and made is not plain
    assert type(pickle.loads(pickle.dumps(made))) is type(plain) is type(copy.deepcopy(made))
    assert made.get_config() == plain.get_config()
    net.compile(optimizer, "mse")
    net.save(str(tmp_path / "model.keras"))
    loaded = find_schedule(package.models.load_model(str(tmp_path / "model.keras")).optimizer)
    assert type(loaded) is type(plain) and loaded.get_config() == plain.get_config()
    rescale_rate(optimizer, 2, 3)
    assert float(find_schedule(optimizer)(0)) == 1.5
    rescale_rate(optimizer, 3, 1)
    assert find_schedule(optimizer) is plain


def test_a_schedule_that_replaces_another_is_in_force() -> None:
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25]))
    optimizer.build([keras.Variable(numpy.zeros(1, "float32"))])
    rescale_rate(optimizer, 1, 2)
    optimizer.learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.2])
    assert read_rate(optimizer) == pytest.approx(0.1)
    rescale_rate(optimizer, 2, 4)
    assert read_rate(optimizer) == pytest.approx(0.2), "follows the number of ranks"


def test_a_function_s_values_are_multiplied() -> None:
    optimizer = keras.optimizers.SGD(tenth)
    optimizer.build([keras.Variable(numpy.zeros(1, "float32"))])
    rescale_rate(optimizer, 1, 3)
    assert read_rate(optimizer) == pytest.approx(0.3)
    with keras.saving.custom_object_scope({"tenth": tenth}):
        again = keras.optimizers.SGD.from_config(optimizer.get_config())
    assert read_rate(again) == pytest.approx(0.1), "its configuration names the user's function"
    rescale_rate(optimizer, 3, 1)
    assert optimizer._learning_rate is tenth


def test_the_optimizer_inside_of_another_has_the_rate() -> None:
    inner = keras.optimizers.SGD(0.5)
    scaler = keras.optimizers.LossScaleOptimizer(inner)
    scaler.build([keras.Variable(numpy.zeros(1, "float32"))])
    assert not is_keras_2(scaler)
    rescale_rate(scaler, 1, 4)
    assert read_rate(scaler) == 2 == float(keras.ops.convert_to_numpy(inner.learning_rate))
