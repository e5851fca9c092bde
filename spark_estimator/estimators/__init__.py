"""Estimators: ``fit(df)`` trains a framework's model on ranks, ``transform(df)`` predicts with it, as Spark ML does.

Pipelines that older versions saved name the modules that classes were in then. Those names lead to the classes.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# [former module] the classes that it had, each with the module that has it now.
_FORMER_MODULES = {
    f"{__name__}.{framework}_{role}": {f"{prefix}{role.capitalize()}": f"{__name__}.{framework}.{role}"}
    for framework, prefix in (("torch", "Torch"), ("keras", "Keras"), ("lightning", "Torch"))
    for role in ("estimator", "model")
}


class _FormerModule(ModuleType):
    """A module that was moved: the present one is imported when a class is asked for, and for no other name.

    Programs ask all modules for a name, such as cloudpickle for a function that has no module.
    """

    def __getattr__(self, name: str) -> Any:
        home = _FORMER_MODULES[self.__name__].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)


for _name, _classes in _FORMER_MODULES.items():
    sys.modules.setdefault(_name, _FormerModule(_name, f"Moved to {', '.join(_classes.values())}."))
