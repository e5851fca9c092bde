"""Constructors that record which keywords they were called with."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def recorded(constructor: Callable[..., None]) -> Callable[..., None]:
    """Keeps a call's keywords in ``self._keywords``."""

    @wraps(constructor)
    def recording(self: Any, **keywords: Any) -> None:
        self._keywords = keywords
        constructor(self, **keywords)

    return recording
