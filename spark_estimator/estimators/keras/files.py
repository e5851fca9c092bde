"""A `KerasModel` in a folder: JSON and a ``.keras`` file; read without running code from it.

What `folders` and `told` tell of, and: ``model.keras``, which Keras loads without this package, too;
``custom_objects.pkl``, where there are any, has the user's classes and functions, which need trust or to be given anew.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.objects import dumped, packed
from spark_estimator.estimators.persistence import model_files
from spark_estimator.estimators.persistence.folders import is_trusted, local_path
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest
from spark_estimator.keras.importing import keras

if TYPE_CHECKING:
    from spark_estimator.estimators.keras.model import KerasModel

_MODEL, _OBJECTS = "model.keras", "custom_objects.pkl"


def write(model: KerasModel, folder: Path) -> None:
    """Puts a model's files into a new folder.

    Raises:
        DataError: a decoder cannot be pickled, or Keras cannot save the model.
    """
    told = model_files.write_plain(model, folder)
    write_keras(model.getModel(), model.getCustomObjects(), folder)
    write_manifest(folder, model, told)


def load(
    path: str, custom_objects: Mapping[str, Any] | None, decoders: Mapping[str, Any] | None, *, trust: bool
) -> KerasModel:
    """See `KerasModel.load`."""
    from spark_estimator.estimators.keras.model import KerasModel

    told = Manifest(local_path(path), "KerasModel")
    found, objects = read_keras(told, custom_objects, trust=is_trusted(trust))
    model = model_files.loaded(told, KerasModel, found, decoders, trust=trust)
    return model.setCustomObjects(objects)


def write_keras(model: Any, custom_objects: Mapping[str, Any], folder: Path) -> None:
    """The model's file, and one of the classes and functions that it needs."""
    (folder / _MODEL).write_bytes(dumped(model))
    if custom_objects:
        (folder / _OBJECTS).write_bytes(packed("custom_objects", dict(custom_objects)))


def read_keras(told: Manifest, custom_objects: Mapping[str, Any] | None, *, trust: bool) -> tuple[Any, dict[str, Any]]:
    """What `write_keras` has written: the model, and the classes and functions that it was read with.

    Raises:
        DataError: as `KerasModel.load`.
    """
    file = told.file(_MODEL)
    objects = dict(custom_objects or {})
    if trust and told.has(_OBJECTS):
        try:
            objects = {**pickle.loads(told.file(_OBJECTS).read_bytes()), **objects}  # noqa: S301  # trusted
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{told.folder / _OBJECTS} cannot be read: {type(error).__name__}: {error}") from error
    if not trust:
        known = {*objects, *keras.saving.get_custom_objects()}
        strange = sorted(set(_strange(_config(file), known)))
        if strange:
            raise DataError(
                f"{told.folder}: its model is made of {', '.join(strange)}, which are not Keras' own, and to read them "
                "could run any code that the file names. Say custom_objects={...} with yours, or trust=True (in a "
                "pipeline: with trust_files()) if you know where the folder comes from."
            )
    try:
        model = keras.saving.load_model(file, custom_objects=objects, safe_mode=not trust)
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
        for one in config:
            yield from _strange(one, known)
    if not isinstance(config, dict):
        return
    name, module = config.get("class_name"), config.get("module")
    if name == "__lambda__" or (name == "Lambda" and str(module).startswith("keras")):
        yield "a Lambda"
    elif name is not None and ("module" in config or "registered_name" in config):
        called = str(config.get("config") if name == "function" else config.get("registered_name") or name)
        # Without a module Keras looks among what is registered, or given as custom_objects.
        own = name.startswith("__") or module == "builtins" or str(module).partition(".")[0] == "keras"
        if not own and called not in known and str(name) not in known:
            yield called
    for value in config.values():
        yield from _strange(value, known)
