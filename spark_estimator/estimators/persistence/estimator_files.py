"""A saved estimator's folder, for all frameworks: plain parameters as JSON, objects in a separate file.

The framework's module decides how objects are written, and which of them are read without trust.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from spark_estimator.errors import DataError
from spark_estimator.estimators.params import TableParams
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest
from spark_estimator.estimators.persistence.subclass_params import make_instance, restore_subclass, write_subclass

_Estimator = TypeVar("_Estimator", bound=TableParams)

#: They belong to a place, and a store may hold the keys to it.
_LEFT_OUT = ("store", "backend", "profile")


def write(
    estimator: TableParams,
    folder: Path,
    objects: Sequence[str],
    dump: Callable[[dict[str, Any], Path], None],
    pickled: Callable[[Any], object] = cloudpickle.dumps,
) -> None:
    """Put an estimator's files into a new folder.

    Args:
        objects: the parameters that JSON does not hold.
        dump: (objects by name, folder) writes those that were set.
        pickled: how `dump` pickles an object: one that cannot be is refused by its name.

    Raises:
        DataError: a parameter cannot be pickled.
    """
    chosen = {row.name: estimator.getOrDefault(row.name) for row in estimator._rows if estimator.isSet(row.name)}
    for name in _LEFT_OUT:
        if chosen.pop(name, None) is not None:
            warnings.warn(
                f"{name} is not saved, because it is specific to this environment. Set it after loading.", stacklevel=6
            )
    result = {name: chosen.pop(name) for name in objects if name in chosen}
    for name, value in result.items():  # one by one, so that what cannot be sent is named
        try:
            pickled(value)
        except Exception as error:
            raise DataError(f"{name} cannot be saved: {type(error).__name__}: {error}") from error
    dump(result, folder)
    write_manifest(folder, estimator, {"params": chosen, **write_subclass(estimator, folder)})


def load(
    kind: type[_Estimator], folder: Path, objects: Sequence[str], read: Callable[[Manifest], Any], *, trust: bool
) -> _Estimator:
    """Return the estimator that a folder holds.

    Args:
        objects: as of `write`.
        read: what `dump` has written; raises DataError where that needs trust, or is damaged.

    Raises:
        DataError: as `read`; or the folder holds another class, or parameters that the class doesn't have.
    """
    manifest = Manifest(folder, kind.__name__)
    result = read(manifest)
    if not isinstance(result, dict):
        raise DataError(
            f"{manifest.folder} contains {type(result).__name__} instead of the objects of a {kind.__name__}."
        )
    unknown = [name for name in result if name not in objects]
    if unknown:
        raise DataError(f"{manifest.folder} contains {unknown[0]!r}, which a {kind.__name__} doesn't have.")
    try:
        estimator = make_instance(kind, TableParams, **manifest.params, **result)
    except (TypeError, ValueError) as error:
        raise manifest.make_error("params", f"or the saved objects don't fit: {error}") from error
    restore_subclass(estimator, manifest, trust=trust)
    estimator._resetUid(manifest.uid)
    return estimator
