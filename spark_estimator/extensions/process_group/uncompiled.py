"""Keeps ``torch.compile`` from tracing functions that torch's C++ or a compiled program calls here."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

_Kind = TypeVar("_Kind", bound=type)


def disable_compile(kind: _Kind) -> _Kind:
    """Return a class whose public methods run uncompiled, also within a compiled program, which breaks its graph
    there.

    Torch takes a process group for an object whose members cannot be traced, and refuses the whole program when a
    frame of one of its methods is: that of DDP's broadcast of its buckets, for one, which C++ calls amid a
    compiled forward.
    """
    wrapped: dict[FunctionType, Callable[..., Any]] = {}
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
            if method not in wrapped:  # some have a second name
                wrapped[method] = _disable_dynamo(method)
            setattr(kind, name, wrapped[method])
    return kind
