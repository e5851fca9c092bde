"""What Trainers of Lightning 1 took for Horovod, ``accelerator="horovod"`` and its like, for the Trainers of today.

Also those arguments that scripts of that time have beside it, and that Lightning 2 has under another name. As with
Lightning 1, the learning rate of a Trainer with the strategy named "horovod" is multiplied by the number of ranks
(`HorovodStrategy(scale_lr=True)`). A strategy that is passed as an object keeps its own ``scale_lr``; it takes None for
yes only where ``accelerator`` or ``distributed_backend`` ask for Horovod, too. Hooks of Lightning 1 in modules and
callbacks, which Lightning 2 does not call, are named in warnings of rank 0.

Switched on by ``spark_estimator.compat.install(lightning=True)`` alone: it replaces ``Trainer.__init__`` of each
package that is imported, now or later. `restore_names`, which replaces nothing, is switched on by the import of
``horovod.spark.lightning`` under that name.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from typing import Any

from spark_estimator.compat.awaited_imports import call_when_imported
from spark_estimator.lightning.flavours import FLAVOURS, STRATEGY, register, strategy_class

_ours = "_spark_estimator_original"
_on = False
#: What to write for a strategy of Lightning 1.
_SCALING = "HorovodStrategy(scale_lr=True)"
#: Arguments that had nothing to do with Horovod, but stood beside it -> their names of today.
_RENAMED = {
    "progress_bar_refresh_rate": "enable_progress_bar",
    "checkpoint_callback": "enable_checkpointing",
    "weights_summary": "enable_model_summary",
    "resume_from_checkpoint": "",
}


def restore_names() -> None:
    """Add those names of Lightning 1 that clients of ``horovod.spark.lightning`` import and Lightning 2 has elsewhere.

    Only to the package ``pytorch_lightning``, when it is imported.
    """
    call_when_imported("pytorch_lightning", _restore)


def _restore(flavour: str) -> None:
    utilities = importlib.import_module(f"{flavour}.utilities")
    if not hasattr(utilities, "_module_available"):
        utilities._module_available = importlib.import_module("lightning_utilities.core.imports").module_available  # type: ignore[attr-defined]


def install() -> None:
    """Has Trainers understand the old spellings; a second call changes nothing."""
    global _on
    if not _on:
        _on = True
        for flavour in FLAVOURS:
            call_when_imported(flavour, _patch)


def is_installed() -> bool:
    """Return whether Trainers understand them."""
    return _on


def uninstall() -> None:
    """Take it back; Trainers that were made stay."""
    global _on
    _on = False
    for flavour in FLAVOURS:
        trainer: Any = getattr(sys.modules.get(flavour), "Trainer", None)
        original = None if trainer is None else getattr(trainer.__init__, _ours, None)
        if original is not None:
            trainer.__init__ = original


def translate(arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return today's arguments of a Trainer for those of Lightning 1, and what to write instead.

    Others are returned unchanged, with an empty text. `gpus` is among them unless Horovod is asked for: what it
    becomes depends on the strategy.

    Raises:
        ValueError: Horovod and another strategy are asked for, or one thing in both spellings, or something that
            has moved to other arguments.
    """
    new = dict(arguments)
    old: dict[str, Any] = {}
    instead: dict[str, Any] = {}
    requested = [name for name in ("accelerator", "distributed_backend") if arguments.get(name) == STRATEGY]
    strategy = arguments.get("strategy")
    if requested or (strategy == STRATEGY and "gpus" in arguments):
        old |= {name: new.pop(name) for name in (*requested, "gpus") if name in new}
        if not _is_ours(strategy):
            if strategy not in (STRATEGY, None, "auto"):
                raise ValueError(f"Trainer({requested[0]}='horovod', strategy={strategy!r}): choose one of the two.")
            new["strategy"] = STRATEGY
        # Without `gpus` those Trainers used none; with it each rank had one, for any number.
        new.setdefault("accelerator", "gpu" if arguments.get("gpus") else "cpu")
        instead |= {"strategy": _SCALING, "accelerator": new["accelerator"]}
    left_out = []
    for name in [name for name in _RENAMED if name in new]:
        old[name] = new.pop(name)
        if name == "checkpoint_callback" and _is_callback(old[name]):
            new["callbacks"] = instead["callbacks"] = [*_list_callbacks(new.get("callbacks")), old[name]]
            continue
        today, value = _rename(name, old[name])
        if value is None:
            left_out.append(name)
        elif today in new:
            raise ValueError(f"Trainer({name}={old[name]!r}, {today}={new[today]!r}): choose one of the two.")
        else:
            new[today] = instead[today] = value
    if not old:
        return arguments, ""
    advice = [f"write Trainer({_format_arguments(instead)})"] * bool(instead)
    advice += [f"leave {', '.join(left_out)} out"] * bool(left_out)
    return new, f"Trainer({_format_arguments(old)}) is a spelling of Lightning 1; {' and '.join(advice)}."


def _rename(name: str, value: Any) -> tuple[str, bool | None]:
    """Return today's name of one of `_RENAMED`, and its value there; None if that is Lightning's own choice."""
    if name == "resume_from_checkpoint" and value is not None:
        raise ValueError(f"Trainer({name}={value!r}): pass it to fit() instead: fit(module, ckpt_path={str(value)!r}).")
    if name == "checkpoint_callback" and value is not None:
        if not isinstance(value, bool):
            raise ValueError(f"Trainer({name}=...) must be True, False or a callback; got {value!r:.100}.")
        return _RENAMED[name], value
    off = (name == "progress_bar_refresh_rate" and value == 0) or (name == "weights_summary" and value is None)
    return _RENAMED[name], False if off else None


def _is_callback(value: Any) -> bool:
    """Return whether a value is a callback of either package."""
    return any(base.__name__ == "Callback" for base in type(value).__mro__)


def _list_callbacks(value: Any) -> list[Any]:
    """Return the argument `callbacks` of a Trainer as a list: it may be None, one, or several."""
    return [value] if _is_callback(value) else list(value or ())


def _format_arguments(arguments: dict[str, Any]) -> str:
    shown = {name: value if value == _SCALING else _format_value(value) for name, value in arguments.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items())


def _format_value(value: Any) -> str:
    """Return a value as source; a callback by its class, as its repr is an address."""
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return f"{type(value).__name__}(...)" if _is_callback(value) else repr(value)


def _is_ours(strategy: Any) -> bool:
    """Return whether a strategy is an object of this package's."""
    return getattr(strategy, "strategy_name", None) == STRATEGY and hasattr(strategy, "scale_lr")


def _scale_rates(flavour: str, arguments: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return `new` with a strategy that multiplies the learning rate where that of Lightning 1 did so."""
    strategy: Any = new.get("strategy")
    if isinstance(strategy, str) and strategy == STRATEGY:
        return {**new, "strategy": strategy_class(flavour)(scale_lr=True)}
    requested = STRATEGY in (arguments.get("accelerator"), arguments.get("distributed_backend"))
    if requested and _is_ours(strategy) and strategy.scale_lr is None:
        strategy.scale_lr = True
    return new


def _check_gpu(flavour: str, arguments: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise an error about the missing GPU for `gpus`, where Lightning's would only name an unknown "backend"."""
    if "gpus" in new or not arguments.get("gpus") or new.get("accelerator") != "gpu":
        return
    kinds = importlib.import_module(f"{flavour}.accelerators")
    if not kinds.CUDAAccelerator.is_available() and not kinds.MPSAccelerator.is_available():
        raise RuntimeError(
            f"gpus={arguments['gpus']!r} was requested, but this process has no GPU. Remove gpus to train on the CPU."
        )


def _patch(flavour: str) -> None:
    trainer = importlib.import_module(flavour).Trainer
    original = trainer.__init__
    if not _on or hasattr(original, _ours):
        return
    register(flavour)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        new, advice = translate(kwargs)
        if advice:
            warnings.warn(advice, DeprecationWarning, stacklevel=2)
        _check_gpu(flavour, kwargs, new)
        original(self, *args, **_scale_rates(flavour, kwargs, new))
        if _is_ours(self.strategy):
            self.strategy.warns_of_old_hooks = True

    setattr(init, _ours, original)
    trainer.__init__ = init
