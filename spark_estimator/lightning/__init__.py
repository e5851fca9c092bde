"""Horovod for Lightning 2: ``import spark_estimator.lightning``, then ``Trainer(strategy="horovod")``.

Ranks are started by ``horovodrun`` or ``HorovodRunner``; a process without a launcher is a job of one. Each has one
device, so ``devices`` and ``num_nodes`` are left out, or 1. It serves ``lightning.pytorch`` and ``pytorch_lightning``,
which are one library in two packages with separate classes. This import registers the name with each of them that has
been imported, and with the other when it is imported. It imports neither, as the user may not need both.

``HorovodStrategy`` takes options. It is that of the package that has been imported; with both, or none, that of
``lightning.pytorch`` where it is installed. `strategy_class` gives the one of a package by its name.

``TorchEstimator`` and ``TorchModel`` are those of ``horovod.spark.lightning``, for Spark's DataFrames, and ``legacy``
has its ``to_lightning_module``; they need Spark, and are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from spark_estimator.compat.awaited_imports import call_when_imported
from spark_estimator.lightning.flavours import FLAVOURS, check_installed, choose_flavour, register, strategy_class

if TYPE_CHECKING:
    from spark_estimator.estimators.lightning import legacy
    from spark_estimator.estimators.lightning.estimator import TorchEstimator
    from spark_estimator.estimators.lightning.model import TorchModel
    from spark_estimator.lightning.on_lightning import HorovodStrategy

__all__ = ["HorovodStrategy", "TorchEstimator", "TorchModel", "legacy", "strategy_class"]

#: Names of a higher layer, as "module:attribute".
_ABOVE = {
    "TorchEstimator": "spark_estimator.estimators.lightning.estimator:TorchEstimator",
    "TorchModel": "spark_estimator.estimators.lightning.model:TorchModel",
    "legacy": "spark_estimator.estimators.lightning.legacy:",
}

check_installed()
for _flavour in FLAVOURS:
    call_when_imported(_flavour, register)


def __getattr__(name: str) -> object:
    if name == "HorovodStrategy":
        return strategy_class(choose_flavour())
    if name == "AddOnStrategy":  # `lightning_horovod.HorovodStrategy`
        return importlib.import_module(FLAVOURS[choose_flavour()]).AddOnStrategy
    if name in _ABOVE:
        home, _, attribute = _ABOVE[name].partition(":")
        module = importlib.import_module(home)
        return getattr(module, attribute) if attribute else module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
