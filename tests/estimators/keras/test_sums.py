"""Losses and metrics over the rows of an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator.collectives import context
from spark_estimator.estimators.keras.sums import Sums


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def test_batches_of_unequal_size_count_by_their_rows() -> None:
    net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    net.compile("sgd", "mse", metrics=["mae"])
    x = numpy.arange(5, dtype=numpy.float32).reshape(5, 1)
    y = numpy.zeros_like(x)
    net.test_on_batch(x, y)
    sums = Sums(net)
    sums.begin()
    with sums.add_up():
        first = sums.add(net.test_on_batch(x[:4], y[:4], return_dict=True), 4)
        state = sums.get_state()
        sums.add(net.test_on_batch(x[4:], y[4:], return_dict=True), 1)
        averages = sums.compute_averages()
        sums.restore(state)
        assert sums.compute_averages()["loss"] == pytest.approx(3.5), "restored to the first batch"
    assert first["loss"] == pytest.approx(3.5)
    assert averages["loss"] == pytest.approx(6) and averages["mae"] == pytest.approx(2)
    sums.begin()
    assert sums.get_state()["rows"] == 0
