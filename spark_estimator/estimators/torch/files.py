"""A saved `TorchModel`: JSON, the weights, and the architecture; read without running code from the folder.

What `folders` and `manifest` describe, and: ``weights.pt`` the numbers, for ``torch.load(..., weights_only=True)``;
``module.pt`` the architecture. The architecture of modules of torch.nn is read by PyTorch's restricted unpickler, which
makes objects of known classes only. Other classes need either a module to fill, or trust.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.estimators import model_files
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.persistence.folders import is_trusted
from spark_estimator.estimators.persistence.manifest import Manifest, write_manifest
from spark_estimator.estimators.torch.reading import RefusedObjectsError, read
from spark_estimator.torch.sending import prepare_to_send

_Model = TypeVar("_Model", bound=TableModel)


def load(
    kind: type[_Model],
    folder: Path,
    module: nn.Module | None,
    decoders: Mapping[str, Any] | None = None,
    *,
    trust: bool,
) -> _Model:
    """See `TorchModel.load`."""
    manifest = Manifest(folder, kind.__name__)
    filled = _load_architecture(manifest, is_trusted(trust)) if module is None else copy.deepcopy(module)
    _fill(filled, manifest, assign=module is None)
    return model_files.load(manifest, kind, filled.eval(), decoders, trust=trust)


def _fill(module: nn.Module, manifest: Manifest, *, assign: bool) -> None:
    """Load the saved weights into a module.

    Args:
        assign: the tensors of the module are replaced, also by tensors of another dtype; False: the values are
            copied into them.
    """
    file = manifest.check_file("weights.pt")
    try:
        weights = read(file)
    except RefusedObjectsError as error:
        raise DataError(f"{file} holds more than numbers, and is not read: {error}") from error
    try:
        module.load_state_dict(weights, assign=assign)
    except Exception as error:
        whose = "the architecture beside them" if assign else "the module that was given as model=..."
        raise DataError(f"the numbers in {file} do not fit {whose}: {type(error).__name__}: {error}") from error


def write(model: TableModel, module: nn.Module, folder: Path) -> None:
    """Put a model's files into a new folder.

    Args:
        module: the trained module.

    Raises:
        DataError: a decoder cannot be pickled.
    """
    manifest = model_files.write_plain(model, folder)
    prepare_to_send(module)
    trained = copy.deepcopy(module).cpu()
    torch.save(trained.state_dict(), folder / "weights.pt")
    try:
        # cloudpickle writes classes of a notebook's cells, or of a function, into the file; pickle would only name
        # them.
        torch.save(_drop_numbers(trained), folder / "module.pt", pickle_module=cloudpickle)
    except Exception as error:
        # The numbers are there: it can be loaded into a module.
        (folder / "module.pt").unlink(missing_ok=True)
        (folder / "module.missing").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    write_manifest(folder, model, manifest)


def _drop_numbers(module: nn.Module) -> nn.Module:
    """Return the module, changed in place: all that ``weights.pt`` has is left out; buffers that are not in it are
    kept.
    """
    buffers = [
        (name, buffer, part._buffers[buffer])
        for name, part in module.named_modules()
        for buffer in part._non_persistent_buffers_set
    ]
    bare = module.to("meta")
    for name, buffer, value in buffers:
        bare.get_submodule(name)._buffers[buffer] = value
    return bare


def _load_architecture(manifest: Manifest, trust: bool) -> nn.Module:
    if not manifest.has("module.pt"):
        reason = (
            manifest.check_file("module.missing").read_text(encoding="utf-8") if manifest.has("module.missing") else ""
        )
        raise DataError(
            f"{manifest.folder} contains no architecture ({reason}). Pass model=... with the same architecture."
        )
    file = manifest.check_file("module.pt")
    classes = [item for _, item in inspect.getmembers(nn, inspect.isclass) if issubclass(item, nn.Module)]
    try:
        loaded = read(file, [*classes, set], trust=trust)
    except RefusedObjectsError as error:
        raise DataError(
            f"{manifest.folder}: its architecture uses classes other than torch.nn's own, and loading them could run "
            "any code. Pass model=YourModule(...) to load the weights into, or pass trust=True (in a pipeline: use "
            f"trust_files()) if you trust the folder. ({error})"
        ) from error
    if not isinstance(loaded, nn.Module):
        raise DataError(f"{file} contains {type(loaded).__name__} instead of a torch.nn.Module.")
    return loaded
