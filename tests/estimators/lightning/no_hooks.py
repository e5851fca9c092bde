"""Hooks of a training that does nothing at any moment."""

from __future__ import annotations

from typing import Any


class NoHooks:
    """See `callbacks.EpochHooks`."""

    def __getattr__(self, name: str) -> Any:
        return lambda trainer: None
