"""Estimators: ``fit(df)`` trains a framework's model on ranks, ``transform(df)`` predicts with it, as Spark ML does.

Pipelines that older versions saved name the modules that classes were in then. Those names lead to the classes.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_FORMER_MODULES = {
    f"{__name__}.{framework}_{role}": f"{__name__}.{framework}.{role}"
    for framework in ("torch", "keras", "lightning")
    for role in ("estimator", "model")
}


class _FormerModule(ModuleType):
    """A module that was moved: it is imported when a name of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(_FORMER_MODULES[self.__name__]), name)


for _name in _FORMER_MODULES:
    sys.modules.setdefault(_name, _FormerModule(_name, f"Moved to {_FORMER_MODULES[_name]}."))
