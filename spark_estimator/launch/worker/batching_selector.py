"""A selector that pauses a stream for a moment, so that its lines gather and are read together."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

# To be woken for every few lines would slow down a training that prints much; a person does not see the difference.
_SECONDS = 0.04


class RestingSelector(selectors.DefaultSelector):
    """Registered streams may be paused with `rest`; all others are polled as usual."""

    def __init__(self) -> None:
        super().__init__()
        self._resting: list[selectors.SelectorKey] = []
        self._until = 0.0

    def rest(self, *names: object) -> None:
        """Ignore, for `_SECONDS` from the first one on, what was registered with these as its data."""
        for key in [key for key in self.get_map().values() if key.data in names]:
            self._until = self._until if self._resting else time.monotonic() + _SECONDS
            super().unregister(key.fileobj)
            self._resting.append(key)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Unregister a stream, also a resting one."""
        for key in self._resting:
            if key.fileobj is fileobj:
                self._resting.remove(key)
                return key
        return super().unregister(fileobj)

    def resume(self) -> None:
        """Poll all streams again."""
        while self._resting:
            key = self._resting.pop()
            self.register(key.fileobj, key.events, key.data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for ready streams; return [] also when the rest is over."""
        if self._resting:
            remaining = self._until - time.monotonic()
            if remaining > 0:
                return super().select(remaining if timeout is None else min(remaining, timeout))
            self.resume()
        return super().select(timeout)
