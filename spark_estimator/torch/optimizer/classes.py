"""The classes of wrapped optimizers: subclasses of the user's classes that keep all of their methods and attributes."""

from __future__ import annotations

import copyreg
from collections.abc import Set
from typing import Any

import torch

_classes: dict[tuple[type, type], type[torch.optim.Optimizer]] = {}


def make_wrapped_class(
    methods: type[torch.optim.Optimizer], user_class: type[torch.optim.Optimizer]
) -> type[torch.optim.Optimizer]:
    """Return the user's class with `methods` before its own; the same one for two optimizers of one class."""
    if (methods, user_class) not in _classes:
        names = {name: getattr(user_class, name) for name in ("__module__", "__qualname__", "__doc__")}
        _classes[methods, user_class] = type(user_class.__name__, (methods, user_class), names)
    return _classes[methods, user_class]


def unwrap_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the class that a wrapped optimizer was made with."""
    user_class: type[torch.optim.Optimizer] = type(optimizer).__bases__[1]
    return user_class


def reduce_to_user_class(optimizer: torch.optim.Optimizer, added: Set[str]) -> Any:
    """Reduce an optimizer to the user's own class, for ``__reduce_ex__``, without attributes `added` by wrapping."""
    state: Any = optimizer.__getstate__()
    if isinstance(state, dict):
        state = {key: value for key, value in state.items() if key not in added}
    # Made by the standard library alone, so that it can be loaded where this package is not installed.
    reconstructor = copyreg._reconstructor  # type: ignore[attr-defined]  # no stub
    return reconstructor, (unwrap_class(optimizer), object, None), state
