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
    with sums.adding_up():
        first = sums.add(net.test_on_batch(x[:4], y[:4], return_dict=True), 4)
        state = sums.state()
        sums.add(net.test_on_batch(x[4:], y[4:], return_dict=True), 1)
        averages = sums.averages()
        sums.take(state)
        assert sums.averages()["loss"] == pytest.approx(3.5), "restored to the first batch"
    assert first["loss"] == pytest.approx(3.5)
    assert averages["loss"] == pytest.approx(6) and averages["mae"] == pytest.approx(2)
    sums.begin()
    assert sums.state()["rows"] == 0


def test_the_counts_of_two_ranks_become_those_of_one() -> None:
    net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    net.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
    x = numpy.linspace(0, 1, 7, dtype=numpy.float32).reshape(7, 1)
    y = numpy.array([0, 1, 0, 0, 1, 1, 1], numpy.float32).reshape(7, 1)
    net.test_on_batch(x, y)
    sums = Sums(net)

    def counted(*places: slice) -> None:
        sums.begin()
        with sums.adding_up():
            for place in places:
                sums.add(net.test_on_batch(x[place], y[place], return_dict=True), len(x[place]))

    states = []
    for place in (slice(0, 4), slice(4, 7)):
        counted(place)
        states.append(sums.state())
    counted(slice(0, 4), slice(4, 7))
    expected = sums.averages()
    sums.begin()
    sums.take(sums.joined(*states))
    assert sums.rows == 7
    assert sums.averages() == pytest.approx(expected)
