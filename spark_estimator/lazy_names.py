"""Public names that a module loads from other modules at their first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def bind_names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module, whose names are in these other modules. None is imported now."""

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = vars(sys.modules[module])[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    return load_name, lambda: sorted({*vars(sys.modules[module]), *homes})
