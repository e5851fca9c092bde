"""A saved `KerasModel`: JSON and a ``.keras`` file; both are read without running code from them (`allow_list`).

What `folders` and `manifest` describe, and: ``model.keras``, which Keras loads without this package, too;
``custom_objects.pkl``, where there are any, has the user's classes and functions, which need trust or to be passed
again.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from spark_estimator.errors import DataError
from spark_estimator.estimators import model_files
from spark_estimator.estimators.keras.allow_list import check_archive, find_foreign_names
from spark_estimator.estimators.keras.objects import dump_model, get_first_line, pack, read_model, read_version
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.persistence.folders import TRUST, is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest
from spark_estimator.estimators.persistence.remote_folders import open_folder
from spark_estimator.keras.importing import keras_of_version

_Model = TypeVar("_Model", bound=TableModel)

_MODEL, _OBJECTS = "model.keras", "custom_objects.pkl"


def write(model: TableModel, keras_model: Any, custom_objects: Mapping[str, Any], folder: Path) -> None:
    """Put a model's files into a new folder.

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
    with open_folder(path) as folder:
        manifest = Manifest(folder, kind.__name__)
        result, objects = read_keras(manifest, custom_objects, trust=is_trusted(trust))
        return model_files.load(manifest, kind, result, decoders, trust=trust), objects


def write_keras(model: Any, custom_objects: Mapping[str, Any], folder: Path) -> None:
    """Write the model's file, and a file of the classes and functions that it needs."""
    (folder / _MODEL).write_bytes(dump_model(model))
    if custom_objects:
        (folder / _OBJECTS).write_bytes(pack("custom_objects", dict(custom_objects)))


def read_keras(
    manifest: Manifest, custom_objects: Mapping[str, Any] | None, *, trust: bool
) -> tuple[Any, dict[str, Any]]:
    """Read the files of `write_keras`: return the model, and the classes and functions that it was read with.

    Raises:
        DataError: as `KerasModel.load`.
    """
    content = manifest.read_content(_MODEL)
    file = manifest.folder / _MODEL
    objects = dict(custom_objects or {})
    if trust and manifest.has(_OBJECTS):
        try:
            objects = {**pickle.loads(manifest.read_content(_OBJECTS)), **objects}  # noqa: S301  # trusted
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{manifest.folder / _OBJECTS} cannot be read: {type(error).__name__}: {error}") from error
    if not trust:
        _check(content, file, objects)
    try:
        model = read_model(content, objects, compile=True, safe_mode=not trust)
    except Exception as error:
        reason = get_first_line(error) or type(error).__name__
        if manifest.has(_OBJECTS):
            reason += ". Pass your own classes and functions as custom_objects={...}"
        raise DataError(f"{file} cannot be loaded by Keras: {reason}.") from error
    return model, objects


def _check(content: bytes, file: Path, objects: Mapping[str, Any]) -> None:
    """Raise DataError if reading a model's file could run code."""
    try:
        version = read_version(content)
        if not version.startswith("3."):
            raise DataError(f"it is of Keras {version}, whose files can run any code: pass {TRUST}")
        check_archive(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            config = json.loads(archive.read("config.json"))
    except DataError as error:
        raise DataError(f"{file} is not read: {error}.") from error
    except Exception as error:  # a zip file or an HDF5 file that is none raises any error
        raise DataError(f"{file} is no file of Keras: {type(error).__name__}: {error}") from error
    if foreign := find_foreign_names(config, {*objects, *keras_of_version(version).saving.get_custom_objects()}):
        suggestion = ", ".join(f"{name!r}: {name}" for name in foreign if name.isidentifier()) or "..."
        raise DataError(
            f"{file}: its model uses {', '.join(foreign)}, which aren't Keras' own, and loading them could run any "
            f"code. Pass your own as custom_objects={{{suggestion}}}, or pass {TRUST}."
        )
