"""The `HorovodStrategy` of the package ``lightning_horovod``, under whose name it is served (`compat.aliases`).

It multiplies the learning rate by the number of ranks. As scripts for that package may also write
``Trainer(strategy="horovod")``, that name means this strategy from the import on.
"""

from __future__ import annotations

import importlib

from spark_estimator.lightning.flavours import FLAVOURS, preferred, register, when_imported


def __getattr__(name: str) -> object:
    if name == "HorovodStrategy":
        return importlib.import_module(FLAVOURS[preferred()]).AddOnStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register(flavour: str) -> None:
    register(flavour, "AddOnStrategy")


for _flavour in FLAVOURS:
    when_imported(_flavour, _register)
