"""The parameters that a user's subclass of an estimator or a model adds, in its saved folder.

Texts, numbers and lists of them are in the manifest. Other values are in ``subclass_params.pkl``, which needs trust.
The constructor of the subclass is not called when it is loaded: its parameters are set as they were.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from spark_estimator.errors import DataError
from spark_estimator.estimators.params import TableParams
from spark_estimator.estimators.persistence.folders import is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest

_Instance = TypeVar("_Instance", bound=TableParams)
_FILE = "subclass_params.pkl"
_PLAIN, _PICKLED = "subclass_params", "subclass_objects"


def write_subclass(instance: TableParams, folder: Path) -> dict[str, Any]:
    """Write the parameters that are not in the tables, and return what `write_manifest` has to hold.

    Raises:
        DataError: a value can't be pickled.
    """
    table_names = {*(row.name for row in instance._rows), *instance._ineffective}
    plain: dict[str, dict[str, Any]] = {"set": {}, "defaults": {}}
    pickled: dict[str, dict[str, Any]] = {"set": {}, "defaults": {}}
    for part, values in (("set", instance._paramMap), ("defaults", instance._defaultParamMap)):
        for param, value in values.items():
            if param.name not in table_names:
                (plain if _is_plain(value) else pickled)[part][param.name] = value
    # Defaults of the tables that the subclass has changed.
    tables = {row.name: row.default for row in instance._rows if row.saved}
    for param, value in instance._defaultParamMap.items():
        if param.name in tables and _is_plain(value) and value != tables[param.name]:
            plain["defaults"][param.name] = value
    details: dict[str, Any] = {_PLAIN: plain} if any(plain.values()) else {}
    if any(pickled.values()):
        try:
            (folder / _FILE).write_bytes(cloudpickle.dumps(pickled))
        except Exception as error:
            names = sorted({*pickled["set"], *pickled["defaults"]})
            raise DataError(f"{', '.join(names)} cannot be saved: {type(error).__name__}: {error}") from error
        details[_PICKLED] = sorted({*pickled["set"], *pickled["defaults"]})
    return details


def make_instance(kind: type[_Instance], base: type[Any], **keywords: Any) -> _Instance:
    """Return an object of a class, by the constructor of one of its base classes.

    Args:
        base: this package's class, whose constructor and those that follow it are called.
        keywords: of that constructor.
    """
    instance = kind.__new__(kind)
    base.__init__(instance, **keywords)
    return instance


def restore_subclass(instance: TableParams, manifest: Manifest, *, trust: bool) -> None:
    """Set the parameters that `write_subclass` has written.

    Raises:
        DataError: one needs trust, or is damaged.
    """
    details = manifest.get_optional(_PLAIN, {})
    _set(instance, details)
    names = manifest.get_optional(_PICKLED, [])
    if not names:
        return
    if not is_trusted(trust):
        raise DataError(
            f"{manifest.folder}: loading its parameters {', '.join(names)} could run any code. Pass trust=True (in a "
            "pipeline: use trust_files()) if you trust the folder."
        )
    file = manifest.check_file(_FILE)
    try:
        _set(instance, pickle.loads(file.read_bytes()))  # noqa: S301  # the caller trusts it
    except Exception as error:
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def _set(instance: TableParams, values: Mapping[str, Mapping[str, Any]]) -> None:
    instance._setDefault(**values.get("defaults", {}))
    instance._set(**values.get("set", {}))


def _is_plain(value: Any) -> bool:
    """Return whether JSON preserves the value."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
