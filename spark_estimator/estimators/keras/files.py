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
_TRUST = "trust=True (in a pipeline: use trust_files()) if you trust the folder"
#: Packages of Keras' own classes.
_OF_KERAS = ("keras", "tf_keras")
#: Modules of Keras in which it searches functions whose module a file does not name.
_WITH_FUNCTIONS = ("activations", "constraints", "initializers", "losses", "metrics", "regularizers")


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
    known = {*objects, *keras.saving.get_custom_objects()}
    if not trust:
        strange = sorted(set(_strange(config, known)))
        if strange:
            raise DataError(
                f"{manifest.folder}: its model uses {', '.join(strange)}, which aren't Keras' own, and loading them "
                f"could run any code. Pass your own as custom_objects={{...}}, or pass {_TRUST}."
            )
    try:
        model = keras.saving.load_model(str(file), custom_objects=objects, safe_mode=not trust)
    except Exception as error:
        functions = sorted(set(_own_functions(config, known, keras)))
        if functions:
            reason = f"its model uses functions that aren't Keras' own: {', '.join(functions)}."
        else:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if functions or (manifest.has(_OBJECTS) and not trust):
            wanted = ", ".join(f"{name!r}: {name}" for name in functions) or "..."
            reason += f" Pass your own classes and functions as custom_objects={{{wanted}}}"
            reason += "." if trust else f", or pass {_TRUST}."
        raise DataError(f"{file} cannot be loaded by Keras {keras.__version__}: {reason}") from error
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


def _own_functions(config: Any, known: set[str], keras: Any) -> Iterator[str]:
    """The names of functions in a configuration that are not known, and that Keras does not have."""
    if isinstance(config, list):
        for item in config:
            yield from _own_functions(item, known, keras)
    if not isinstance(config, dict):
        return
    name = config.get("config") if config.get("class_name") == "function" else None
    of_keras = isinstance(name, str) and any(hasattr(getattr(keras, module), name) for module in _WITH_FUNCTIONS)
    if isinstance(name, str) and name not in known and not of_keras:
        yield name
    for value in config.values():
        yield from _own_functions(value, known, keras)
