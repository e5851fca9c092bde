"""Copies of variables on their device: steps are undone, on each backend."""

from __future__ import annotations

from typing import Any

from tests.keras.conftest import RankPool


def undone(rank: int) -> None:
    import keras
    import numpy

    from spark_estimator.keras.device_copies import DeviceCopies

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    inputs = numpy.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def values() -> list[Any]:
        return [numpy.array(keras.ops.convert_to_numpy(each)) for each in variables]

    def same(ones: list[Any], others: list[Any]) -> bool:
        return all(numpy.array_equal(value, other) for value, other in zip(ones, others, strict=True))

    model.train_on_batch(inputs, inputs[:, :2])
    variables = [*model.weights, *model.optimizer.variables]
    copies = DeviceCopies(variables, model)
    before, kept = values(), copies.take()
    model.train_on_batch(inputs, inputs[:, :2])
    later, kept_later = values(), copies.take()
    assert not same(before, later)
    for _ in range(2):  # a step after the first return must not change what is kept
        model.train_on_batch(inputs, inputs[:, :2])
        copies.restore(kept)
        assert same(values(), before)
    copies.restore(kept_later)
    assert same(values(), later)
    model.train_on_batch(inputs, inputs[:, :2])
    third, kept_third = values(), copies.take()
    copies.restore(kept_later)
    assert same(values(), later)
    copies.restore(kept_third)
    assert same(values(), third)
    assert DeviceCopies([], model).take() == []


def test_a_step_is_undone(two_ranks: RankPool) -> None:
    two_ranks.run(undone)
