"""A saved `KerasModel`: JSON and a ``.keras`` file; both are read without running code from them.

What `folders` and `manifest` describe, and: ``model.keras``, which Keras loads without this package, too;
``custom_objects.pkl``, where there are any, has the user's classes and functions, which need trust or to be passed
again.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.objects import dumped, keras_of_file, packed
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.persistence import model_files
from spark_estimator.estimators.persistence.folders import is_trusted, local_path
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest

_Model = TypeVar("_Model", bound=TableModel)

_MODEL, _OBJECTS = "model.keras", "custom_objects.pkl"
#: Packages of Keras' own classes.
_OF_KERAS = ("keras", "tf_keras")


def write(model: TableModel, keras_model: Any, custom_objects: Mapping[str, Any], folder: Path) -> None:
    """Puts a model's files into a new folder.

    Args:
        keras_model: the trained model.
        custom_objects: the classes and functions that it needs, by name.

    Raises:
        DataError: a decoder cannot be pickled, or Keras cannot save the model.
    """
    manifest = model_files.write_plain(model, folder)
    write_keras(keras_model, custom_objects, folder)
    write_manifest(folder, model, manifest)


def load(
    kind: type[_Model],
    path: str,
    custom_objects: Mapping[str, Any] | None,
    decoders: Mapping[str, Any] | None,
    *,
    trust: bool,
) -> tuple[_Model, dict[str, Any]]:
    """See `KerasModel.load`: the model of class `kind`, and the classes and functions that it was read with."""
    manifest = Manifest(local_path(path), kind.__name__)
    result, objects = read_keras(manifest, custom_objects, trust=is_trusted(trust))
    return model_files.loaded(manifest, kind, result, decoders, trust=trust), objects


def write_keras(model: Any, custom_objects: Mapping[str, Any], folder: Path) -> None:
    """The model's file, and one of the classes and functions that it needs."""
    (folder / _MODEL).write_bytes(dumped(model))
    if custom_objects:
        (folder / _OBJECTS).write_bytes(packed("custom_objects", dict(custom_objects)))


def read_keras(
    manifest: Manifest, custom_objects: Mapping[str, Any] | None, *, trust: bool
) -> tuple[Any, dict[str, Any]]:
    """Reads the files of `write_keras`: returns the model, and the classes and functions that it was read with.

    Raises:
        DataError: as `KerasModel.load`.
    """
    file = manifest.file(_MODEL)
    objects = dict(custom_objects or {})
    if trust and manifest.has(_OBJECTS):
        try:
            objects = {**pickle.loads(manifest.file(_OBJECTS).read_bytes()), **objects}  # noqa: S301  # trusted
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{manifest.folder / _OBJECTS} cannot be read: {type(error).__name__}: {error}") from error
    config = _config(file)
    keras = keras_of_file(file)
    if not trust:
        known = {*objects, *keras.saving.get_custom_objects()}
        strange = sorted(set(_strange(config, known)))
        if strange:
            raise DataError(
                f"{manifest.folder}: its model uses {', '.join(strange)}, which aren't Keras' own, and loading them "
                "could run any code. Pass your own as custom_objects={...}, or pass trust=True (in a pipeline: use "
                "trust_files()) if you trust the folder."
            )
    try:
        model = keras.saving.load_model(str(file), custom_objects=objects, safe_mode=not trust)
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(f"{file} cannot be loaded by Keras {keras.__version__}: {first}") from error
    return model, objects


def _config(file: Path) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read("config.json"))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DataError(f"{file} is no file of Keras: {type(error).__name__}: {error}") from error


def _strange(config: Any, known: set[str]) -> Iterator[str]:
    """The names of classes and functions in a configuration that are neither Keras' own nor known."""
    if isinstance(config, list):
        for item in config:
            yield from _strange(item, known)
    if not isinstance(config, dict):
        return
    name, module = config.get("class_name"), config.get("module")
    if name == "__lambda__" or (name == "Lambda" and str(module).startswith(_OF_KERAS)):
        yield "a Lambda"
    elif name is not None and ("module" in config or "registered_name" in config):
        called = str(config.get("config") if name == "function" else config.get("registered_name") or name)
        # Without a module Keras searches the registered objects and custom_objects.
        of_keras = name.startswith("__") or module == "builtins" or str(module).partition(".")[0] in _OF_KERAS
        if not of_keras and called not in known and str(name) not in known:
            yield called
    for value in config.values():
        yield from _strange(value, known)
