"""`KerasModel` in a folder: read without running code."""

from __future__ import annotations

import functools
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError, KerasModel, trust_files
from spark_estimator.estimators.keras import files
from tests.estimators.conftest import Poison, rewritten
from tests.estimators.keras.conftest import add_layer, edited
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
    words = r"its model uses .*Tripled, which aren't Keras' own.*custom_objects=\{'Tripled': Tripled\}, or pass trust"
    with pytest.raises(DataError, match=words):
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
        r"its model uses doubled, which aren't Keras' own.*custom_objects=\{'doubled': doubled\}, or pass trust=True"
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


def hostile(folder: Path, change: Callable[[Any], Any], **others: bytes) -> str:
    """A saved model whose files an attacker has changed."""
    model_of(network()).save(str(folder))
    rewritten(folder, "model.keras", edited((folder / "model.keras").read_bytes(), change, **others))
    return str(folder)


@pytest.mark.parametrize("legacy", [False, True], ids=["Keras 3", "without a module"])
def test_a_lambda_is_not_run(
    tmp_path: Path, marker: Path, lambda_layer: dict[str, Any], without_safe_mode: None, legacy: bool
) -> None:
    def change(config: Any) -> None:
        add_layer(config, **lambda_layer)
        if legacy:
            del config["config"]["layers"][-1]["module"]

    path = hostile(tmp_path / "model", change)
    with pytest.raises(DataError, match=r"its model uses a Lambda, which aren't Keras' own"):
        KerasModel.load(path)
    assert not marker.exists()
    KerasModel.load(path, trust=True)
    assert marker.exists(), "it is a file that runs code, if it is trusted"


def test_keras_safe_mode_is_on_in_the_user_s_own_classes(
    tmp_path: Path, marker: Path, lambda_config: dict[str, Any]
) -> None:
    class Scripted(keras.layers.Layer):  # type: ignore[misc]
        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            keras.saving.deserialize_keras_object({"class_name": "__lambda__", "config": config.pop("script")})()
            return cls(**config)

    def change(config: Any) -> None:
        add_layer(config, class_name="Scripted", registered_name="Scripted", config={"script": lambda_config["config"]})

    path = hostile(tmp_path / "model", change)
    load = functools.partial(KerasModel.load, path, custom_objects={"Scripted": Scripted})
    with pytest.raises(DataError, match=r"cannot be loaded by Keras: .*lambda"):
        load()
    assert not marker.exists()
    load(trust=True)
    assert marker.exists()


@pytest.mark.parametrize("kind", ["function", "class", "typespec"])
def test_a_file_cannot_choose_keras_2(tmp_path: Path, marker: Path, hostile_module: str, kind: str) -> None:
    """Its safe mode imports the modules that a file names."""
    pytest.importorskip("tf_keras")
    item: dict[str, Any] = {
        "function": {"class_name": "function", "config": "f", "registered_name": "f"},
        "class": {"class_name": "C", "config": {}, "registered_name": "C"},
        "typespec": {"class_name": "__typespec__", "spec_name": "S", "config": [], "registered_name": None},
    }[kind]
    metadata = json.dumps({"keras_version": "2.21.0"}).encode()
    path = hostile(tmp_path / "model", lambda config: {**item, "module": hostile_module}, **{"metadata.json": metadata})
    with pytest.raises(DataError, match=r"it is of Keras 2\.21\.0, whose files can run any code: pass trust=True"):
        KerasModel.load(path)
    assert not marker.exists()
    with pytest.raises(DataError, match="cannot be loaded by Keras"):
        KerasModel.load(path, trust=True)
    assert marker.exists(), "it is a file that runs code, if it is trusted"


def test_the_bytes_that_are_checked_are_those_that_are_loaded(
    tmp_path: Path,
    marker: Path,
    lambda_layer: dict[str, Any],
    without_safe_mode: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process replaces the file after the check."""
    path = tmp_path / "model"
    model_of(network()).save(str(path))
    change = functools.partial(add_layer, **lambda_layer)
    replaced = edited((path / "model.keras").read_bytes(), change)

    def strange_names(*arguments: Any) -> Any:
        (path / "model.keras").write_bytes(replaced)
        return []

    monkeypatch.setattr(files, "find_foreign_names", strange_names)
    loaded = KerasModel.load(str(path))
    assert numpy.allclose(loaded.predict(ROWS), ROWS.sum(1, keepdims=True)) and not marker.exists()


def test_hostile_pickles_run_nothing(tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "model"
    model_of(keras.Sequential([keras.layers.Input((2,)), Tripled()])).save(str(path))
    rewritten(path, "custom_objects.pkl", pickle.dumps(Poison(marker)))
    with pytest.raises(DataError, match="aren't Keras' own"):
        KerasModel.load(str(path))
    KerasModel.load(str(path), custom_objects={"Tripled": Tripled})
    assert not marker.exists()
    with pytest.raises(DataError, match=r"custom_objects\.pkl cannot be read"):
        KerasModel.load(str(path), trust=True)
    assert marker.exists(), "it is a folder that runs code, if it is trusted"


def test_other_files_in_the_archive(tmp_path: Path) -> None:
    for name in ("code.py", "assets/code.so", "assets/../../vocabulary.txt", "/vocabulary.txt", "model.weights.npz"):
        path = hostile(tmp_path / name.replace("/", "_"), lambda config: None, **{name: b""})
        with pytest.raises(DataError, match=f"is not read: it holds {name!r}, which Keras 3 does not write"):
            KerasModel.load(path)
    path = hostile(tmp_path / "twice", lambda config: None)
    content = io.BytesIO((tmp_path / "twice" / "model.keras").read_bytes())
    with zipfile.ZipFile(content, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("config.json", archive.read("config.json"))
    rewritten(tmp_path / "twice", "model.keras", content.getvalue())
    with pytest.raises(DataError, match="it holds a file twice"):
        KerasModel.load(path)


@pytest.mark.parametrize("content", [b"no archive", b"PK"], ids=["text", "torn"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    model_of(network()).save(str(tmp_path / "model"))
    rewritten(tmp_path / "model", "model.keras", content)
    with pytest.raises(DataError, match=r"model\.keras is no file of Keras: BadZipFile"):
        KerasModel.load(str(tmp_path / "model"))
