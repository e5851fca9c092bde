"""Names the hooks of Lightning 1 that Lightning 2 does not call, in LightningModules and callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

#: Hooks of a module that change what a step returns -> where their code belongs.
STEP_ENDS = {f"{stage}_step_end": f"{stage}_step" for stage in ("training", "validation", "test")}
_SHARED = {
    "on_epoch_start": "on_train_epoch_start, on_validation_epoch_start",
    "on_epoch_end": "on_train_epoch_end, on_validation_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_pretrain_routine_start": "on_fit_start",
    "on_pretrain_routine_end": "on_fit_start",
}
_OF_MODULES = {
    **STEP_ENDS,
    **_SHARED,
    "tbptt_split_batch": "manual optimization",
    "get_progress_bar_dict": "self.log(..., prog_bar=True)",
}
_OF_CALLBACKS = {
    **_SHARED,
    "on_init_start": "setup",
    "on_init_end": "setup",
    "on_before_accelerator_backend_setup": "setup",
    "on_configure_sharded_model": "setup",
    "on_keyboard_interrupt": "on_exception",
}


def warn_about_module(module: Any) -> None:
    """Warns about each such hook of a LightningModule, with the hooks of today to use instead."""
    _warn(module, _OF_MODULES)


def warn_about_callbacks(callbacks: Iterable[Any]) -> None:
    """Warn about such hooks of callbacks, as `warn_about_module` does."""
    for callback in callbacks:
        _warn(callback, _OF_CALLBACKS)


def _warn(item: Any, hooks: Mapping[str, str]) -> None:
    kind = type(item)
    for name, today in hooks.items():
        if callable(getattr(kind, name, None)):
            warnings.warn(
                f"{kind.__name__}.{name}(): no effect, as Lightning 2 does not call it; use {today}.", stacklevel=3
            )
