"""Calls functions when a program has imported a module that it may never import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_when_imported(name: str, act: Callable[[str], None]) -> None:
    """Call ``act(name)`` when the module has been imported: now, or at the end of its import."""
    if is_imported(name):
        act(name)
        return
    _awaited.setdefault(name, []).append(act)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def is_imported(name: str) -> bool:
    """Return whether a module has been imported, to its end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


#: Module that is not imported yet -> function to call then.
_awaited: dict[str, list[Callable[[str], None]]] = {}


class _AwaitingFinder:
    """An import hook that finds no module itself: it extends the loaders of the other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _awaited:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                if module.__name__ == name:  # modules of an archive share a loader
                    for act in _awaited.pop(name, []):
                        act(name)

            # In the loader itself, which others ask for the package's sources and files.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _AwaitingFinder()
