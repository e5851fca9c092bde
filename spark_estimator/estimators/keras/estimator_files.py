"""A saved `KerasEstimator`: plain parameters as JSON, the model as a ``.keras`` file, other objects in one more file.

The model is read by `files`, without running code from it. ``objects.pkl`` exists if optimizer, losses, metrics,
callbacks or functions were passed as objects; it is read only with ``trust=True``.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.allow_list import find_foreign_names
from spark_estimator.estimators.keras.files import read_keras, write_keras
from spark_estimator.estimators.keras.objects import find_custom_objects, pack, pickle_objects
from spark_estimator.estimators.params import TableParams
from spark_estimator.estimators.persistence import estimator_files
from spark_estimator.estimators.persistence.folders import TRUST, is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest
from spark_estimator.estimators.persistence.remote_folders import open_folder
from spark_estimator.keras.importing import is_keras_2, keras_of, keras_of_version
from spark_estimator.keras.optimizers import is_optimizer

_Estimator = TypeVar("_Estimator", bound=TableParams)

#: What JSON does not hold.
_OBJECTS = (
    *("model", "optimizer", "loss", "metrics", "gradient_compression", "custom_objects"),
    *("callbacks", "checkpoint_callback", "decoders", "transformation_fn"),
)
_FILE, _PLAIN = "objects.pkl", "objects.json"
_KERAS_2, _LIST = "keras_2", "list"


def write(estimator: TableParams, folder: Path) -> None:
    """Put an estimator's files into a new folder.

    Raises:
        DataError: a parameter cannot be pickled.
    """
    estimator_files.write(estimator, folder, _OBJECTS, _dump, pickle_objects)


def load(kind: type[_Estimator], path: str, custom_objects: Mapping[str, Any] | None, *, trust: bool) -> _Estimator:
    """See `KerasEstimator.load`."""
    with open_folder(path) as folder:
        return estimator_files.load(
            kind,
            folder,
            _OBJECTS,
            lambda manifest: _read(manifest, custom_objects, trust=is_trusted(trust)),
            trust=trust,
        )


def _dump(objects: dict[str, Any], folder: Path) -> None:
    custom = dict(objects.pop("custom_objects", None) or {})
    model = objects.pop("model", None)
    if model is not None:
        write_keras(model, {**find_custom_objects(model), **custom}, folder)
    config = {name: _serialize(objects.pop(name)) for name in list(objects) if _is_plain(objects[name])}
    (folder / _PLAIN).write_text(json.dumps(config), encoding="utf-8")
    if objects:
        (folder / _FILE).write_bytes(pack("the estimator's objects", objects))


def _serialize(value: Any) -> Any:
    """Return a value in Keras' JSON, which does not record whether an object is of Keras 2."""
    if isinstance(value, (list, tuple)):
        return (
            {_LIST: [_serialize(item) for item in value]} if any(map(is_keras_2, value)) else _serialize_by_keras(value)
        )
    return {_KERAS_2: _serialize_by_keras(value)} if is_keras_2(value) else _serialize_by_keras(value)


def _serialize_by_keras(value: Any) -> Any:
    return keras_of(value).saving.serialize_keras_object(value)


def _deserialize(config: Any, *, trust: bool) -> Any:
    """Return the value that `_serialize` has made a configuration of.

    Raises:
        DataError: it names what could run code.
    """
    if isinstance(config, dict) and _LIST in config:
        return _deserialize(config[_LIST], trust=trust)
    if isinstance(config, list):
        return [_deserialize(item, trust=trust) for item in config]
    if not isinstance(config, dict):
        return config
    if _KERAS_2 in config:
        if not trust:
            raise DataError(f"it is of Keras 2, whose files can run any code: pass {TRUST}")
        return keras_of_version("2.").saving.deserialize_keras_object(config[_KERAS_2], safe_mode=True)
    keras = keras_of_version("3.")
    if not trust and (foreign := find_foreign_names(config, keras.saving.get_custom_objects())):
        raise DataError(f"it names {', '.join(foreign)}, which aren't Keras' own and could run any code: pass {TRUST}")
    return keras.saving.deserialize_keras_object(config, safe_mode=True)


def _is_plain(value: Any) -> bool:
    """Return whether Keras' own JSON holds the whole value, so that it can be read without trust."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if value is None or isinstance(value, (str, int, float, bool)):
        return True
    keras = keras_of(value)
    kinds = (keras.losses.Loss, keras.metrics.Metric)
    return (isinstance(value, kinds) or is_optimizer(value)) and type(value).__module__.startswith(
        ("keras.", "tf_keras.")
    )


def _read(manifest: Manifest, custom_objects: Mapping[str, Any] | None, *, trust: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if manifest.has("model.keras"):
        result["model"], objects = read_keras(manifest, custom_objects, trust=trust)
        if objects:
            result["custom_objects"] = objects
    plain, name = manifest.read_content(_PLAIN), ""
    try:
        for name, config in json.loads(plain).items():
            result[name] = _deserialize(config, trust=trust)
    except DataError as error:
        raise DataError(f"{manifest.folder / _PLAIN}: {name} is not read: {error}.") from error
    except Exception as error:
        raise DataError(f"{manifest.folder / _PLAIN} cannot be read: {type(error).__name__}: {error}") from error
    if manifest.has(_FILE):
        if not trust:
            raise DataError(
                f"{manifest.folder}: some of its losses, metrics, callbacks or functions aren't Keras' own, and "
                f"loading them could run any code. Pass {TRUST}."
            )
        try:
            result |= pickle.loads(manifest.read_content(_FILE))  # noqa: S301  # trusted
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{manifest.folder / _FILE} cannot be read: {type(error).__name__}: {error}") from error
    return result
