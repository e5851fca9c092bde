"""Reads ``.metadata`` of torch's layout: only its own classes are accepted, and none of them is called."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.state import Path

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    (_METADATA, name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
    )
} | {("torch.distributed.checkpoint.filesystem", "_StorageInfo")}


@dataclass(frozen=True)
class Extent:
    """Some bytes of a file of the checkpoint."""

    file: str
    offset: int
    length: int
    first: tuple[int, ...] = ()  # [dimensions] where their rows begin; of what is no tensor empty
    sizes: tuple[int, ...] = ()  # [dimensions] of their rows


@dataclass(frozen=True)
class Saved:
    """A value of the checkpoint."""

    key: str
    path: Path  # where it is in the state
    dtype: torch.dtype | None  # None: it is no tensor
    shape: tuple[int, ...]  # of a tensor
    extents: tuple[Extent, ...]  # where it is


def parse_index(text: bytes, name: str) -> dict[str, Saved]:
    """Return the values by their keys.

    Args:
        text: the file.
        name: of it, for messages.

    Raises:
        DataError: it is damaged, or not such a file.
    """
    try:
        whole = _Reader(io.BytesIO(text)).load()
        storage = {
            (item.fields["fqn"], item.fields.get("offset")): info for item, info in whole["storage_data"].items()
        }
        return {
            key: _parse_value(key, value, storage, whole["planner_data"])
            for key, value in whole["state_dict_metadata"].items()
        }
    except Exception as error:  # a damaged pickle raises any error
        raise DataError(
            f"{name} is no index of a checkpoint, or is damaged: {type(error).__name__}: {error}"
        ) from error


def _parse_value(
    key: str, value: Any, storage: Mapping[Any, Any], paths: Mapping[str, Sequence[str | int]] | None
) -> Saved:
    path = tuple((paths or {}).get(key, (key,)))
    if not value.fields:
        return Saved(key, path, None, (), (_parse_extent(storage[key, None]),))
    dtype = value.fields["properties"].state[0]
    chunks = [(chunk.fields["offsets"], chunk.fields["sizes"]) for chunk in value.fields["chunks"]]
    extents = tuple(_parse_extent(storage[key, first], first, sizes) for first, sizes in chunks)
    return Saved(key, path, dtype, value.fields["size"], extents)


def _parse_extent(info: Any, first: tuple[int, ...] = (), sizes: tuple[int, ...] = ()) -> Extent:
    file, offset, length = (info.fields[name] for name in ("relative_path", "offset", "length"))
    if "/" in file or not file.endswith(".distcp"):
        raise ValueError(f"{file!r} is no file of a checkpoint")
    return Extent(file, int(offset), int(length), first, sizes)


class _Record:
    """Placeholder for an object of torch's: it keeps the arguments of its constructor."""

    state: Any = None  # pickle makes some without __init__

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    @property
    def fields(self) -> dict[str, Any]:
        return self.state or {}

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _Record
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "pathlib" and name in ("Path", "PosixPath", "WindowsPath"):
            return _Record
        if (module, name) in ((_METADATA, "_MEM_FORMAT_ENCODING"), ("torch.serialization", "_get_layout")):
            return _Record
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an index")
