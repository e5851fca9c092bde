"""Writes the pickle of torch's ``Metadata`` of a checkpoint without importing torch, which would take seconds.

Only what that needs: plain values, dicts, lists, tuples, and objects of classes that are named and not there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """A class, a function or a constant of a module."""

    module: str
    name: str


@dataclass(frozen=True)
class Made:
    """An object.

    Attributes:
        by: the function or class that is called to make it; without arguments a class, without its ``__init__``.
        arguments: of that call.
        state: what it is then given: a dict of its attributes, or what its ``__setstate__`` takes; None: nothing.
    """

    by: Name
    arguments: tuple[Any, ...] = ()
    state: Any = None


def pickle_value(value: Any) -> bytes:
    """Return a value in protocol 2 of pickle."""
    pieces = [b"\x80\x02"]
    _write(value, pieces)
    pieces.append(b".")
    return b"".join(pieces)


def _write(value: Any, pieces: list[bytes]) -> None:
    if value is None:
        pieces.append(b"N")
    elif isinstance(value, bool):
        pieces.append(b"\x88" if value else b"\x89")
    elif isinstance(value, int):
        number = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        pieces.append(b"\x8a" + bytes([len(number)]) + number)
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        pieces.append(b"X" + struct.pack("<I", len(text)) + text)
    elif isinstance(value, (tuple, list)):
        pieces.append(b"(")
        for item in value:
            _write(item, pieces)
        pieces.append(b"t" if isinstance(value, tuple) else b"l")
    elif isinstance(value, (Mapping, _Pairs)):
        pieces.append(b"(")
        for pair in value.items():
            for item in pair:
                _write(item, pieces)
        pieces.append(b"d")
    elif isinstance(value, Name):
        pieces.append(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")
    elif isinstance(value, Made):
        _write(value.by, pieces)
        _write(value.arguments, pieces)
        pieces.append(b"R" if value.arguments else b"\x81")
        if value.state is not None:
            _write(value.state, pieces)
            pieces.append(b"b")
    else:
        raise TypeError(f"{type(value).__qualname__} has no pickle here")


class _Pairs:
    """A dict whose keys have no hash here."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self._pairs = pairs

    def items(self) -> list[tuple[Any, Any]]:
        return self._pairs


def make_dict(pairs: list[tuple[Any, Any]]) -> Any:
    """Return a dict of pairs of a key and a value, in their order."""
    return _Pairs(pairs)
