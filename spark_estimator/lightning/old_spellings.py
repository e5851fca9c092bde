"""What Trainers of Lightning 1 took for Horovod, ``accelerator="horovod"`` and its like, for the Trainers of today.

Switched on by ``spark_estimator.compat.install(lightning=True)`` alone: it replaces ``Trainer.__init__`` of each
package that is imported, now or later.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from typing import Any

from spark_estimator.lightning.flavours import FLAVOURS, STRATEGY, register, when_imported

_ours = "_spark_estimator_original"
_on = False


def install() -> None:
    """Has Trainers understand the old spellings; a second call changes nothing."""
    global _on
    if not _on:
        _on = True
        for flavour in FLAVOURS:
            when_imported(flavour, _patch)


def uninstall() -> None:
    """Takes it back; Trainers that were made stay."""
    global _on
    _on = False
    for flavour in FLAVOURS:
        trainer: Any = getattr(sys.modules.get(flavour), "Trainer", None)
        own = None if trainer is None else getattr(trainer.__init__, _ours, None)
        if own is not None:
            trainer.__init__ = own


def translated(arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Arguments of a Trainer of today for those of one of Lightning 1, and what to write instead.

    Others come back as they are, with an empty text: only those that ask for Horovod are old for certain.

    Raises:
        ValueError: Horovod and another strategy are asked for.
    """
    asked = [name for name in ("accelerator", "distributed_backend") if arguments.get(name) == STRATEGY]
    if not asked and not (arguments.get("strategy") == STRATEGY and "gpus" in arguments):
        return arguments, ""
    new = {name: value for name, value in arguments.items() if name not in asked and name != "gpus"}
    if new.get("strategy", STRATEGY) not in (STRATEGY, None, "auto"):
        raise ValueError(f"Trainer({asked[0]}='horovod', strategy={new['strategy']!r}): choose one of the two.")
    new["strategy"] = STRATEGY
    # Without `gpus` those Trainers used none; with it each rank had one, whatever the number meant.
    new.setdefault("accelerator", "gpu" if arguments.get("gpus") else "cpu")
    old = ", ".join(f"{name}={arguments[name]!r}" for name in (*asked, "gpus") if name in arguments)
    instead = ", ".join(f"{name}={new[name]!r}" for name in ("strategy", "accelerator"))
    return new, f"Trainer({old}) is a spelling of Lightning 1; write Trainer({instead})."


def _patch(flavour: str) -> None:
    trainer = importlib.import_module(flavour).Trainer
    own = trainer.__init__
    if not _on or hasattr(own, _ours):
        return
    register(flavour)

    @functools.wraps(own)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        new, advice = translated(kwargs)
        if advice:
            warnings.warn(advice, DeprecationWarning, stacklevel=2)
        own(self, *args, **new)

    setattr(init, _ours, own)
    trainer.__init__ = init
