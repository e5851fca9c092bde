"""``horovod.common.basics``: `HorovodBasics`, whose methods are the functions of this package about ranks."""

from __future__ import annotations

import importlib
from typing import Any


class HorovodBasics:
    """Horovod's functions that are not of one framework, as methods: ``init``, ``rank``, ``size``, ``nccl_built``, ...

    Args:
        pkg_path, args: where Horovod looks for its library; not used.
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        # Imported by name at the call: the module is in a higher layer.
        return getattr(importlib.import_module("spark_estimator.collectives.context"), name)
