"""`KerasEstimator` in a folder."""

from __future__ import annotations

import functools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError, KerasEstimator
from tests.estimators.conftest import Poison, rewritten
from tests.estimators.keras.conftest import add_layer, edited


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


def hostile(folder: Path, loss: Any) -> str:
    """A saved estimator whose loss an attacker has changed."""
    KerasEstimator(model=network(), loss="mse").save(str(folder))
    rewritten(folder, "objects.json", json.dumps({"loss": loss}).encode())
    return str(folder)


def test_hostile_pickles_run_nothing(tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "estimator"
    KerasEstimator(model=network(), loss=lambda label, output: output).save(str(path))
    rewritten(path, "objects.pkl", pickle.dumps(Poison(marker)))
    with pytest.raises(DataError, match="aren't Keras' own"):
        KerasEstimator.load(str(path))
    assert not marker.exists()


@pytest.mark.parametrize("as_list", [False, True])
def test_objects_cannot_choose_keras_2(tmp_path: Path, marker: Path, hostile_module: str, as_list: bool) -> None:
    """Its safe mode imports the modules that a file names."""
    pytest.importorskip("tf_keras")
    item = {"keras_2": {"class_name": "function", "config": "f", "module": hostile_module, "registered_name": "f"}}
    path = hostile(tmp_path / "estimator", {"list": [item]} if as_list else item)
    with pytest.raises(DataError, match=r"objects\.json: loss is not read: it is of Keras 2, .*: pass trust=True"):
        KerasEstimator.load(path)
    assert not marker.exists()
    with pytest.raises(DataError, match=r"objects\.json cannot be read"):
        KerasEstimator.load(path, trust=True)
    assert marker.exists(), "it is a file that runs code, if it is trusted"


def test_objects_name_keras_own_classes_only(
    tmp_path: Path,
    marker: Path,
    lambda_config: dict[str, Any],
    lambda_layer: dict[str, Any],
    without_safe_mode: None,
) -> None:
    wrapped = {"module": "keras.layers", **lambda_layer}
    system = {"class_name": "function", "config": "system", "module": "os", "registered_name": "system"}
    for number, item in enumerate((lambda_config, wrapped, [wrapped], {"output": wrapped})):
        path = hostile(tmp_path / f"lambda {number}", item)
        with pytest.raises(DataError, match="loss is not read: it names a Lambda, which aren't Keras' own"):
            KerasEstimator.load(path)
    with pytest.raises(DataError, match="it names system, which aren't Keras' own"):
        KerasEstimator.load(hostile(tmp_path / "system", system))
    assert not marker.exists()


def test_its_model_is_read_as_that_of_a_keras_model(
    tmp_path: Path, marker: Path, lambda_layer: dict[str, Any], without_safe_mode: None
) -> None:
    folder = tmp_path / "estimator"
    KerasEstimator(model=network(), loss="mse").save(str(folder))
    change = functools.partial(add_layer, **lambda_layer)
    rewritten(folder, "model.keras", edited((folder / "model.keras").read_bytes(), change))
    with pytest.raises(DataError, match="its model uses a Lambda"):
        KerasEstimator.load(str(folder))
    assert not marker.exists()
