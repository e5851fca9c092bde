"""The position of a future's callback in the program, so that the collectives that it calls match those of other ranks.

Ranks run the callback of a future at different moments, and in different threads: in the one that adds it if the
operation is done by then, else in the waiter's (see ``work``). So a callback's calls cannot be matched by their order
in time, as other operations are. They are matched by their *point*: the operation of the future, the number of the
callback, and the number of the call in it. Those are the same on all ranks that run the same program, at any time and
in any thread.

Torch runs a callback that is added late within ``then``, unseen; so `watch_futures` wraps the methods of torch's
futures that take a callback. For a future of another backend they behave as before.
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
        path: the same on all ranks, and of no other point of the job; None where ranks have nothing in common, as for a
            message.
    """

    __slots__ = ("_callbacks", "_calls", "path")

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._callbacks = itertools.count()
        self._calls = itertools.count()

    def make_callback_point(self) -> ProgramPoint:
        """Return the point of the next callback that is added to this operation's future, or to this callback's."""
        return ProgramPoint(self.path and f"{self.path}/callback{next(self._callbacks)}")

    def call(self) -> str:
        """Return the path of the next operation that this callback calls."""
        return f"{self.path}/call{next(self._calls)}"


def get_current() -> ProgramPoint | None:
    """Return the point of the callback that this thread runs; None outside of any."""
    return getattr(_thread, "point", None)


_points: weakref.WeakKeyDictionary[Any, ProgramPoint] = weakref.WeakKeyDictionary()


def note(future: Any, point: ProgramPoint) -> None:
    """Note the point of a future: that of its operation."""
    _points[future] = point


def watch_futures(before_wait: Callable[[], None]) -> None:
    """Make torch's futures report their callbacks. To be called once.

    Args:
        before_wait: called whenever a thread is about to wait for a future that is not done.
    """
    kind: Any = torch._C.Future  # the result of `then`, and the base of torch.futures.Future
    add, then, wait = kind.add_done_callback, kind.then, kind.wait

    @functools.wraps(then)
    def call_then(self: Any, callback: Callable[[Any], Any]) -> Any:
        point = _points.get(self)
        if point is None:
            return then(self, callback)
        point = point.make_callback_point()
        child = then(self, _run_at(point, callback))
        _points[child] = point
        return child

    @functools.wraps(add)
    def call_add(self: Any, callback: Callable[[Any], Any]) -> None:
        point = _points.get(self)
        add(self, callback if point is None else _run_at(point.make_callback_point(), callback))

    @functools.wraps(wait)
    def call_wait(self: Any) -> Any:
        if not self.done():
            before_wait()
        return wait(self)

    kind.add_done_callback, kind.then, kind.wait = call_add, call_then, call_wait


def _run_at(point: ProgramPoint, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the callback wrapped to run at a point."""

    @functools.wraps(callback)
    def run(future: Any) -> Any:
        outer = get_current()
        _thread.point = point
        try:
            return callback(future)
        finally:
            _thread.point = outer

    return run
