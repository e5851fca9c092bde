"""`KerasModel` in a folder: read without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError, KerasModel, trust_files
from tests.estimators.keras.test_model import ROWS, model_of, network


class Tripled(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return 3 * x


def test_a_model_of_keras_own_needs_no_trust(tmp_path: Path) -> None:
    saved = model_of(network(), history={"loss": [0.5]}, batch_size=7)
    saved.save(str(tmp_path / "model"))
    loaded = KerasModel.load(str(tmp_path / "model"))
    assert type(loaded) is KerasModel and loaded.uid == saved.uid
    assert (loaded.getHistory(), loaded.getBatchSize()) == ({"loss": [0.5]}, 7)
    assert numpy.allclose(loaded.predict(ROWS), saved.predict(ROWS))
    assert not (tmp_path / "model" / "custom_objects.pkl").exists()


def test_other_classes_are_passed_or_trusted(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    saved = model_of(keras.Sequential([keras.layers.Input((2,)), Tripled(), keras.layers.Dense(1)]))
    saved.save(path)
    with pytest.raises(DataError, match=r"its model uses .*Tripled, which aren't Keras' own.*custom_objects=\{"):
        KerasModel.load(path)
    passed = KerasModel.load(path, custom_objects={"Tripled": Tripled})
    with trust_files():
        for loaded in (passed, KerasModel.load(path)):
            assert numpy.allclose(loaded.predict(ROWS), saved.predict(ROWS))
            assert "Tripled" in str(loaded.getCustomObjects())


def doubled(x: Any) -> Any:
    return 2 * x


def test_functions_that_a_model_needs_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    layers = [keras.layers.Input((2,)), keras.layers.Dense(2, "relu"), keras.layers.Dense(1, activation=doubled)]
    saved = model_of(keras.Sequential(layers), custom_objects={"doubled": doubled})
    saved.save(path)
    words = (
        r"functions that aren't Keras' own: doubled\..*custom_objects=\{'doubled': doubled\}, or pass trust=True .*if"
    )
    with pytest.raises(DataError, match=words):
        KerasModel.load(path)
    for loaded in (KerasModel.load(path, custom_objects={"doubled": doubled}), KerasModel.load(path, trust=True)):
        assert numpy.allclose(loaded.predict(ROWS), saved.predict(ROWS))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    model_of(network()).save(str(tmp_path / "model"))
    (tmp_path / "model" / "model.keras").write_bytes(b"other")
    with pytest.raises(DataError, match=r"model\.keras is damaged: its 5 bytes don't match the SHA-256"):
        KerasModel.load(str(tmp_path / "model"))
