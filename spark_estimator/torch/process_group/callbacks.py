"""Where a callback of a future stands in the program, so that the collectives that it calls meet those of other ranks.

Ranks run the callback of a future at different moments, and in different threads: in that which adds it if the
operation is done by then, else in the waiter's (see ``work``). What a callback calls can therefore not meet by the
order in time, as other operations do. It meets by its *place*: which operation's future it was, its which callback, and
which call in it. Those are the same on all ranks that run the same program, whenever and wherever they do.

Torch runs a callback that is added late within ``then``, unseen; so `watch_futures` wraps the methods of torch's
futures that take a callback. For a future that is none of a process group of ours they do what they did.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

_thread = threading.local()


class ProgramPoint:
    """Of an operation or a callback in the program of its group's ranks.

    Attributes:
        path: the same on all ranks, and of no other place of the job; None where ranks have nothing in common, as for a
            message.
    """

    __slots__ = ("_callbacks", "_calls", "path")

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._callbacks = itertools.count()
        self._calls = itertools.count()

    def callback(self) -> ProgramPoint:
        """The place of the next callback that is added to this operation's future, or to this callback's."""
        return ProgramPoint(self.path and f"{self.path}/callback{next(self._callbacks)}")

    def call(self) -> str:
        """The path of the next operation that this callback calls."""
        return f"{self.path}/call{next(self._calls)}"


def current() -> ProgramPoint | None:
    """The place of the callback that this thread runs; None outside of any."""
    return getattr(_thread, "place", None)


_places: weakref.WeakKeyDictionary[Any, ProgramPoint] = weakref.WeakKeyDictionary()


def note(future: Any, place: ProgramPoint) -> None:
    """Notes which place a future has: that of its operation."""
    _places[future] = place


def watch_futures(before_wait: Callable[[], None]) -> None:
    """Has torch's futures tell of their callbacks. To be called once.

    Args:
        before_wait: called whenever a thread is about to wait for a future that is not done.
    """
    kind: Any = torch._C.Future  # what `then` gives, and what torch.futures.Future is made of
    add, then, wait = kind.add_done_callback, kind.then, kind.wait

    @functools.wraps(then)
    def watched_then(self: Any, callback: Callable[[Any], Any]) -> Any:
        place = _places.get(self)
        if place is None:
            return then(self, callback)
        place = place.callback()
        child = then(self, _at(place, callback))
        _places[child] = place
        return child

    @functools.wraps(add)
    def watched_add(self: Any, callback: Callable[[Any], Any]) -> None:
        place = _places.get(self)
        add(self, callback if place is None else _at(place.callback(), callback))

    @functools.wraps(wait)
    def watched_wait(self: Any) -> Any:
        if not self.done():
            before_wait()
        return wait(self)

    kind.add_done_callback, kind.then, kind.wait = watched_add, watched_then, watched_wait


def _at(place: ProgramPoint, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The callback, run as standing at a place."""

    @functools.wraps(callback)
    def run(future: Any) -> Any:
        outer = current()
        _thread.place = place
        try:
            return callback(future)
        finally:
            _thread.place = outer

    return run
