"""Files of Keras that an attacker has changed, so that they leave a marker when their code runs."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def edited(content: bytes, change: Callable[[Any], Any], **others: bytes) -> bytes:
    """A ``.keras`` file with another configuration, and with other files inside."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members: dict[str, bytes] = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    members["config.json"] = json.dumps(change(config) or config).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, member in {**members, **others}.items():
            archive.writestr(name, member)
    return stream.getvalue()


def add_layer(model: Any, /, **layer: Any) -> None:
    """Puts a layer at the end of a Sequential model's configuration."""
    model["config"]["layers"].append({"module": "keras.layers", "config": {}, "registered_name": None, **layer})


@pytest.fixture
def lambda_config(marker: Path) -> dict[str, Any]:
    """A function in Keras' JSON that leaves the marker."""
    import keras

    touch = eval(f"lambda *x: __import__('pathlib').Path({str(marker)!r}).touch() or (x and x[0])")
    with pytest.warns(UserWarning, match="lambda"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("inspect.getsource", lambda function: "")  # it has none
        result: dict[str, Any] = json.loads(json.dumps(keras.saving.serialize_keras_object(touch)))
    return result


@pytest.fixture
def lambda_layer(lambda_config: dict[str, Any]) -> dict[str, Any]:
    """A layer of that function, as Keras writes it."""
    names = ("code", "defaults", "closure")
    function = {**lambda_config, "config": dict(zip(names, lambda_config["config"]["value"], strict=True))}
    return {"class_name": "Lambda", "config": {"name": "hostile", "function": function}}


@pytest.fixture
def without_safe_mode() -> Iterator[None]:
    """The program has switched Keras' own safe mode off, so that only this package's check is left."""
    import keras
    from keras.src.saving import serialization_lib

    keras.config.enable_unsafe_deserialization()
    yield
    serialization_lib.global_state.set_global_attribute("safe_mode_saving", None)


@pytest.fixture
def hostile_module(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module whose import leaves the marker."""
    (tmp_path / "hostile_module.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hostile_module"
    sys.modules.pop("hostile_module", None)
