"""The compiled step of a Keras training on TensorFlow."""

from __future__ import annotations

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator.estimators.keras.compiled import compile_step


def test_a_step_is_compiled_for_batches_of_any_size() -> None:
    net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    batch = numpy.zeros((1, 2), numpy.float32), numpy.zeros((1, 1), numpy.float32)
    before = net.train_function
    compile_step(net, (*batch, None))
    if keras.backend.backend() != "tensorflow":
        assert net.train_function is before, "on other backends it does nothing"
        return
    step = net.train_function
    for rows in (1, 3):
        net.train_on_batch(*(numpy.repeat(array, rows, axis=0) for array in batch))
    assert net.train_function is step


def test_an_eager_model_stays_eager() -> None:
    net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse", run_eagerly=True)
    before = net.train_function
    compile_step(net, (numpy.zeros((1, 2)), numpy.zeros((1, 1)), None))
    assert net.train_function is before
