"""A Keras model that predicts on arrays."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator.data.fields import Field
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference import model_file
from spark_estimator.estimators.keras.predictor import KerasPredictor

ROWS = numpy.arange(10, dtype=numpy.float32).reshape(5, 2)
ENCODER = RowEncoder(("c0",), (Field(("x",), ("c0",), (2,), "float32", (2,)),))


def test_batches_are_put_together_with_the_model_as_it_was() -> None:
    net = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dropout(0.9), keras.layers.Dense(1, kernel_initializer="ones")]
    )
    predictor = KerasPredictor.of(net, {}, ENCODER, (1,), batch_size=3)
    same = KerasPredictor.of(net, {}, ENCODER, (1,), batch_size=3)
    assert predictor._key == same._key, "a worker keeps the model that it has loaded"
    net.layers[-1].kernel.assign(0 * net.layers[-1].kernel)
    assert KerasPredictor.of(net, {}, ENCODER, (1,), batch_size=3)._key != same._key
    (outputs,) = pickle.loads(pickle.dumps(predictor)).predict_matrices([ROWS])
    assert numpy.allclose(outputs, ROWS.sum(1, keepdims=True)) and outputs.dtype == numpy.float32


def test_a_large_model_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    predictor = KerasPredictor.of(net, {}, ENCODER, (1,), batch_size=3)
    (tmp_path / "file").write_bytes(predictor.payload)
    monkeypatch.setattr(model_file, "find_path", lambda name: str(tmp_path / name))
    (outputs,) = replace(predictor, payload=b"", file="file").predict_matrices([ROWS])
    assert numpy.array_equal(outputs, predictor.predict_matrices([ROWS])[0])
