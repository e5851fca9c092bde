"""Pickles values that mean the same in another process: numbers, texts, tensors, and collections of these."""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy
import torch

from spark_estimator.elastic.peer_copies import smallest_within
from spark_estimator.log import logger

#: Their classes are plain, with plain contents.
_PLAIN_MODULES = ("builtins", "collections", "datetime", "decimal", "enum", "fractions", "pathlib", "uuid")
_MOST_BYTES = 16 << 20
_log = logger(__name__)


class PlainValues:
    """Packs named values again and again, and leaves out those that are not plain, or are too large.

    Args:
        owner: what they belong to, for a warning.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._left_out: set[str] = set()

    def leaves_out(self, name: str) -> bool:
        """Whether a value of this name was not plain, or too large, once."""
        return name in self._left_out

    def packed(self, values: Mapping[str, Any]) -> bytes:
        """The values, less those that this has ever left out; a warning names large ones."""
        kept = {name: value for name, value in values.items() if name not in self._left_out}
        try:
            content = dumped(kept)
        except Exception:  # any error of the class of an object
            return self.packed(self._only_plain(kept))
        if len(content) <= _MOST_BYTES:
            return content
        names = list(kept)
        sizes = [len(dumped(kept[name])) for name in names]
        small = smallest_within(sizes, _MOST_BYTES)
        large = [name for place, name in enumerate(names) if place not in small]
        self._left_out.update(large)
        _log.warning(
            "%s of %s: more than %d bytes, which are not kept for other ranks. A process that replaces a lost rank "
            "starts without them.",
            ", ".join(large), self._owner, _MOST_BYTES,
        )  # fmt: skip
        return dumped({name: value for name, value in kept.items() if name not in self._left_out})

    def _only_plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        plain = {}
        for name, value in values.items():
            try:
                dumped(value)
            except Exception:  # any error of the class of an object
                self._left_out.add(name)
            else:
                plain[name] = value
        return plain


def dumped(value: Any) -> bytes:
    """A plain value, for ``pickle.loads``; tensors without their graphs.

    Raises:
        TypeError: it contains other objects.
        Any error: of the object's class.
    """
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and not isinstance(obj, torch.nn.Parameter):
            content = obj.detach().cpu().contiguous()
            raw = content.reshape(-1).view(torch.uint8).numpy().tobytes()
            return _tensor, (raw, obj.dtype, tuple(obj.shape), obj.is_cuda)
        if isinstance(obj, (type, FunctionType, BuiltinFunctionType, numpy.ndarray, numpy.generic, numpy.dtype)):
            return NotImplemented
        # A bare object() is a mark, compared by identity, which a copy does not have.
        if type(obj) is not object and (
            isinstance(obj, (torch.dtype, torch.device, torch.Size, enum.Enum))
            or type(obj).__module__ in _PLAIN_MODULES
        ):
            return NotImplemented
        raise TypeError(f"a {type(obj).__name__} is no plain value")


def _tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...], is_cuda: bool) -> torch.Tensor:
    result = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return (result.cuda() if is_cuda else result).reshape(shape)
