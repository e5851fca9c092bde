"""`KerasEstimator` in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError, KerasEstimator


def network() -> Any:
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def test_objects_of_keras_own_need_no_trust(tmp_path: Path) -> None:
    saved = KerasEstimator(
        model=network(), optimizer=keras.optimizers.SGD(0.25), loss=["mse"], metrics=["mae"], epochs=3, label_cols=["y"]
    )
    saved.save(str(tmp_path / "estimator"))
    loaded = KerasEstimator.load(str(tmp_path / "estimator"))
    assert type(loaded) is KerasEstimator
    assert (loaded.uid, loaded.getEpochs(), loaded.getLoss(), loaded.getMetrics()) == (saved.uid, 3, ["mse"], ["mae"])
    assert float(keras.ops.convert_to_numpy(loaded.getOptimizer().learning_rate)) == 0.25
    for value, other in zip(saved.getModel().get_weights(), loaded.getModel().get_weights(), strict=True):
        assert numpy.array_equal(value, other)


def test_functions_need_trust(tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    KerasEstimator(model=network(), loss=lambda label, output: output).save(path)
    with pytest.raises(DataError, match=r"aren't Keras' own, and loading them could run any code\. Pass trust=True"):
        KerasEstimator.load(path)
    (loss,) = KerasEstimator.load(path, trust=True).getLoss()
    assert loss(1, 2) == 2
