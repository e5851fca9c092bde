"""Histories without what differs from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def drop_times(history: Any) -> Any:
    """Return a history of either form without the times of its epochs, to compare its numbers."""
    if isinstance(history, Mapping):
        return {name: values for name, values in history.items() if not name.startswith("time_")}
    return [{name: part for name, part in entry.items() if name != "time"} for entry in history]
