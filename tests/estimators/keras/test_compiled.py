"""The compiled step of a Keras training on TensorFlow."""

from __future__ import annotations

import os

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
    compile_step(net)
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
    compile_step(net)
    assert net.train_function is before


def test_a_step_of_keras_2_takes_several_inputs_and_outputs() -> None:
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        pytest.skip("Keras 2 computes with TensorFlow")
    tf_keras = pytest.importorskip("tf_keras")
    inputs = [tf_keras.Input((1,)) for _ in range(2)]
    joined = tf_keras.layers.Concatenate()(inputs)
    net = tf_keras.Model(inputs, [tf_keras.layers.Dense(1)(joined) for _ in range(2)])
    net.compile("sgd", ["mse", "mae"])
    compile_step(net)
    step = net.train_function
    for rows, kind in ((3, numpy.float32), (1, numpy.float64)):
        columns = [numpy.ones((rows, 1), kind)] * 2
        net.train_on_batch(columns, columns, sample_weight=numpy.ones(rows))
    assert net.train_function is step
