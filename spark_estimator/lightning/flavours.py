"""The two packages of Lightning, each with its own tree of classes, and which of them is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from spark_estimator.compat.awaited_imports import is_imported

#: Package -> the module here that has its strategy.
FLAVOURS = {
    "lightning.pytorch": "spark_estimator.lightning.on_lightning",
    "pytorch_lightning": "spark_estimator.lightning.on_pytorch_lightning",
}
#: The oldest release that is supported: scripts for Horovod leave off where theirs is older. Under Horovod's name.
MIN_PL_VERSION = "2.4"
#: The name by which a Trainer knows the strategy.
STRATEGY = "horovod"
_named = "HorovodStrategy"  # the class that it makes


def find_installed() -> list[str]:
    """Return those of `FLAVOURS` that can be imported here; imports none."""
    return [name for name in FLAVOURS if importlib.util.find_spec(name.partition(".")[0]) is not None]


def check_installed() -> None:
    """Raise ModuleNotFoundError, with what to install, where there is no PyTorch or no Lightning."""
    if importlib.util.find_spec("torch") is None or not find_installed():
        missing = "PyTorch" if importlib.util.find_spec("torch") is None else "Lightning"
        raise ModuleNotFoundError(
            f"spark_estimator.lightning needs {missing}, which is not installed: pip install lightning",
            name=missing.lower().removeprefix("py"),
        )


def choose_flavour() -> str:
    """Return the one that has been imported; with both or none, the first that is installed."""
    imported = [name for name in FLAVOURS if is_imported(name)]
    return imported[0] if len(imported) == 1 else find_installed()[0]


def strategy_class(flavour: str) -> Any:
    """Return the HorovodStrategy of ``"lightning.pytorch"`` or ``"pytorch_lightning"``, which is imported for it.

    Raises:
        ValueError: `flavour` is neither.
        ModuleNotFoundError: it is not installed.
    """
    if flavour not in FLAVOURS:
        raise ValueError(f"Lightning's packages are {' and '.join(FLAVOURS)}; {flavour!r} is not one of them.")
    return importlib.import_module(FLAVOURS[flavour]).HorovodStrategy


def name_class(kind: str) -> None:
    """Set the class that Trainers make for the name: ``HorovodStrategy``, or ``AddOnStrategy``."""
    global _named
    _named = kind


def register(flavour: str) -> None:
    """Register ``Trainer(strategy="horovod")`` with a package that has been imported. A second call changes nothing."""
    registry = importlib.import_module(f"{flavour}.strategies").StrategyRegistry
    if STRATEGY not in registry:
        # Not the class itself, whose module needs the package to its end; and not everybody will ask for it.
        registry.register(
            STRATEGY,
            lambda **options: getattr(importlib.import_module(FLAVOURS[flavour]), _named)(**options),
            description="averages gradients as Horovod does",
        )
