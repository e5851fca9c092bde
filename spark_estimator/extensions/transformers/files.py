"""A `TransformersModel` in a folder that plain transformers, or peft, loads; read without running code from it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from spark_estimator.errors import DataError
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.persistence.folders import is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest
from spark_estimator.estimators.persistence.remote_folders import open_folder
from spark_estimator.estimators.persistence.subclass_params import make_instance, restore_subclass, write_subclass
from spark_estimator.extensions.transformers.adapter import get_base_dtype
from spark_estimator.extensions.transformers.allow_list import ADAPTER, open_private_folder
from spark_estimator.extensions.transformers.module import KINDS
from spark_estimator.extensions.transformers.pretrained import LOCAL, Pretrained, silence_warnings
from spark_estimator.extensions.transformers.special_tokens import settle_end

if TYPE_CHECKING:
    from spark_estimator.extensions.transformers.model import TransformersModel

_Model = TypeVar("_Model", bound="TransformersModel")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def write(model: TransformersModel, folder: Path) -> None:
    """Put a model's files into a new folder."""
    net = model.getModel()
    net.save_pretrained(folder)
    tokenizer = model._value("tokenizer")
    filling = net.config.pad_token_id
    if tokenizer.pad_token_id is None and filling is not None:  # transformers then fills up rows as `transform` does
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(filling)
    tokenizer.save_pretrained(folder)
    saved = {row.name: model.getOrDefault(row.name) for row in model._rows if row.saved}
    details = {"base_dtype": get_base_dtype(net)} if (folder / ADAPTER).exists() else {}
    write_manifest(folder, model, {"params": saved, **details, **write_subclass(model, folder)})


def load(kind: type[_Model], path: str, base: str | None, *, trust: bool) -> _Model:
    """See `TransformersModel.load`."""
    with open_folder(path) as folder:
        return _load_model(kind, Manifest(folder, kind.__name__), path, base, trust=trust)


def _load_model(kind: type[_Model], manifest: Manifest, path: str, base: str | None, *, trust: bool) -> _Model:
    task = manifest.params.get("task")
    if not isinstance(task, str) or task not in KINDS:
        raise manifest.make_error("params", f"has the task {task!r}")
    with open_private_folder(manifest, trust=is_trusted(trust)) as folder:
        tokenizer = _load_tokenizer(folder)
        if manifest.has(ADAPTER):
            net = _load_with_adapter(manifest, folder, task, base, trust=is_trusted(trust))
            if task == "causal":
                settle_end(net, tokenizer)  # peft does not save the model's config
        else:
            net = Pretrained(str(folder)).load(KINDS[task])
            net.config.name_or_path = str(path)
    tokenizer.name_or_path = str(path)
    try:
        model = make_instance(kind, TableModel, model=net.eval(), tokenizer=tokenizer, **manifest.params)
    except (TypeError, ValueError) as error:
        raise manifest.make_error("params", f"does not fit: {error}") from error
    restore_subclass(model, manifest, trust=trust)
    model._resetUid(manifest.uid)
    return model


def _load_tokenizer(folder: Path) -> Any:
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: its tokenizer can't be read: {type(error).__name__}: {error}") from error


def _load_with_adapter(manifest: Manifest, folder: Path, task: str, base: str | None, *, trust: bool) -> Any:
    import peft

    labels, dtype = manifest.params.get("labels") or [], manifest.get_optional("base_dtype", "float32")
    if dtype not in _DTYPES:
        raise manifest.make_error("base_dtype", f"must be one of {', '.join(_DTYPES)}; it is {dtype!r}")
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), **({"num_labels": len(labels)} if labels else {})}
    config = peft.PeftConfig.from_pretrained(str(folder))
    origin = base or config.base_model_name_or_path
    if base is None and not trust:
        raise DataError(
            f"{manifest.folder} is an adapter of {origin!r}: pass base={origin!r}, or base='another folder of that "
            "model'. The adapter names its base itself, which is followed with trust=True only (in a pipeline: use "
            "trust_files())."
        )
    try:
        pretrained = Pretrained.from_parameter(origin, "" if base else config.revision or "")
    except DataError as error:
        raise DataError(
            f"{manifest.folder} is an adapter of {origin!r}: pass base='folder of that model'. {error}"
        ) from error
    with silence_warnings():  # the adapter has what is new in it
        net = pretrained.load(KINDS[task], **options)
    return peft.PeftModel.from_pretrained(net, str(folder))
