"""The files of a saved model that all frameworks have: its params, inputs, outputs and decoders (`manifest`).

``decoders.pkl``, where there are any, has their functions, which need trust or to be passed again.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import numpy

from spark_estimator.data.fields import Field
from spark_estimator.errors import DataError
from spark_estimator.estimators.inference.prediction_columns import OUTPUT_KINDS
from spark_estimator.estimators.metadata import ModelMetadata, get_label_type
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.persistence.folders import is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest, is_text
from spark_estimator.estimators.persistence.subclass_params import make_instance, restore_subclass, write_subclass

_Model = TypeVar("_Model", bound=TableModel)
#: Names and offsets as Spark has them; pandas would take the path of a file, too.
_ZONE = re.compile(r"[A-Z+-][A-Za-z0-9_+:/-]*")


def write_plain(model: TableModel, folder: Path) -> dict[str, Any]:
    """Write the decoders, and return the entries for `write_manifest`.

    Raises:
        DataError: a decoder cannot be pickled.
    """
    decoders = model.getOrDefault("decoders") or {}
    if decoders:
        try:
            (folder / "decoders.pkl").write_bytes(cloudpickle.dumps(decoders))
        except Exception as error:
            raise DataError(f"decoders cannot be saved: {type(error).__name__}: {error}") from error
    return {
        "params": {
            row.name: model.getOrDefault(row.name) for row in model._rows if row.saved and row.name != "decoders"
        },
        "decoders": sorted(decoders),
        **_make_entries(model),
        **write_subclass(model, folder),
    }


def _make_entries(model: TableModel) -> dict[str, Any]:
    """Return the metadata of the columns; for a model made by hand, at most the labels' types and the outputs'
    kinds.
    """
    metadata = model._value("_metadata")
    if not isinstance(metadata, ModelMetadata):
        labels = model._value("label_columns") or []
        types = [get_label_type(metadata[label]) for label in labels if label in (metadata or {})]
        metadata = ModelMetadata({}, (), (), types if len(types) == len(labels) else (), model._find_output_kinds())
    return {
        "inputs": [asdict(field) for field in metadata.inputs],
        "outputs": list(metadata.outputs),
        "label_types": list(metadata.label_types),
        "meanings": list(metadata.output_kinds),
        "time_zone": metadata.zone,
    }


def load(
    manifest: Manifest, kind: type[_Model], framework_model: Any, decoders: Mapping[str, Any] | None, *, trust: bool
) -> _Model:
    """Return the model that a folder holds.

    Args:
        framework_model: with the trained numbers.
        decoders: in place of those of the folder; None: they are read too.
        trust: code from the folder may run.

    Raises:
        DataError: something of it is broken, or needs trust.
    """
    metadata = _read_metadata(manifest)
    functions = _read_decoders(manifest, decoders, is_trusted(trust))
    try:
        keywords = {"model": framework_model, "_metadata": metadata, **manifest.params, "decoders": functions}
        model = make_instance(kind, TableModel, **keywords)
    except (TypeError, ValueError) as error:
        raise manifest.make_error("params", f"does not fit: {error}") from error
    restore_subclass(model, manifest, trust=trust)
    model._resetUid(manifest.uid)
    return model


def _read_metadata(manifest: Manifest) -> ModelMetadata:
    """Return the metadata of the columns; nothing about outputs if the model was made by hand."""
    outputs = manifest.get("outputs", _check_list(_is_count, least=0), "a list of numbers of values")
    inputs = _read_inputs(manifest, 1 if outputs else 0)
    count = len(outputs) or None
    alike = f"{len(outputs)}, as many as outputs"
    label_types = manifest.get("label_types", _check_list(is_text, count, least=0), f"a list of Spark types, {alike}")
    meant = f"{', '.join(sorted(set(OUTPUT_KINDS.values())))} or null"
    kinds = manifest.get("meanings", _check_list(_is_output_kind, count, least=0), f"a list of {meant}, {alike}")
    zone = manifest.get_optional("time_zone", "UTC")
    if not _ZONE.fullmatch(zone):
        raise manifest.make_error("time_zone", f"must be a time zone, such as Europe/Berlin; it is {zone!r:.80}")
    return ModelMetadata({}, inputs, outputs, label_types, kinds, zone)


def _check_list(right: Callable[[Any], bool], count: int | None = None, least: int = 1) -> Callable[[Any], bool]:
    """Return a test whether a value is a list of such items.

    Args:
        count: how many it has; None: `least` or more.
    """

    def is_it(value: Any) -> bool:
        if not isinstance(value, list) or not all(map(right, value)):
            return False
        return len(value) == count if count else len(value) >= least

    return is_it


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_output_kind(value: Any) -> bool:
    return value is None or value in OUTPUT_KINDS.values()


def _read_inputs(manifest: Manifest, least: int) -> list[Field]:
    """Return the fields, from what JSON has kept of them, which knows no tuples."""
    fields = []
    for saved in manifest.get(
        "inputs", _check_list(lambda item: isinstance(item, dict), least=least), "a list of objects, with one"
    ):
        attributes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
        }
        try:
            field = Field(**attributes)
            of_columns = (field.names, field.columns, field.widths, field.all_times, field.decoded or field.columns)
            if len(set(map(len, of_columns))) > 1:
                raise ValueError("names, columns, widths, times and decoded are not as many")
            if not all(map(is_text, field.names + field.columns)) or not all(
                map(_is_count, field.widths + field.shape)
            ):
                raise ValueError("names and columns are texts, widths and shape whole numbers of 1 or more")
            for kind in filter(None, (field.stored_dtype, field.dtype, *field.decoded)):
                numpy.dtype(kind)
        except (TypeError, ValueError) as error:
            raise manifest.make_error("inputs", f"has an invalid field {saved}: {error}") from error
        fields.append(field)
    return fields


def _read_decoders(manifest: Manifest, decoders: Mapping[str, Any] | None, trust: bool) -> dict[str, Any] | None:
    names = manifest.get("decoders", lambda value: value == [] or _check_list(is_text)(value), "a list of columns")
    if decoders is not None or not names:
        return dict(decoders or {}) or None
    if not trust:
        raise DataError(
            f"{manifest.folder}: its columns {', '.join(names)} have decoders, and loading them could run any code. "
            "Pass your own as decoders={...}, or pass trust=True (in a pipeline: use trust_files()) if you trust the "
            "folder."
        )
    file = manifest.check_file("decoders.pkl")
    try:
        loaded = pickle.loads(file.read_bytes())  # noqa: S301  # the caller trusts the folder
    except Exception as error:
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{file} contains {type(loaded).__name__} instead of a dict from columns to functions.")
    return loaded
