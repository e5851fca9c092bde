"""Keeps Ctrl-C from being lost: Python drops the exception of a signal handler where a callback of the garbage
collector is running, and a library may catch it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def is_interruption(error: BaseException | None, handled: BaseException | None = None) -> bool:
    """Return whether an error is Ctrl-C, or PySpark's handler calling Java. An error `handled` before is no cause."""
    while error is not None and error is not handled:
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return True
        error = error.__context__
    return False


class _RememberingHandler:
    """A handler of SIGINT that calls the one before it, and keeps the exception which that raised."""

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self.before = before
        self.raised: BaseException | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except BaseException as error:
            self.raised = error
            raise


@contextlib.contextmanager
def remember_interruption() -> Iterator[None]:
    """Have `raise_lost_interruption`, within the block, raise once more what the handler of SIGINT has raised.

    It has no effect in another thread than the main one, and where SIGINT is ignored or has no Python handler. A
    handler that raises nothing, such as one that sets a flag, has not interrupted the job.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(before) or isinstance(before, _RememberingHandler):
        yield
        return
    handler = _RememberingHandler(before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handler:  # else the block has set another, as a new Spark session does
            signal.signal(signal.SIGINT, before)


def raise_lost_interruption() -> None:
    """Raise once more what the handler of SIGINT raised in this block, if the loop runs all the same."""
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _RememberingHandler) or handler.raised is None:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    raised, handler.raised = handler.raised, None
    if is_interruption(raised):
        raise KeyboardInterrupt
    raise raised
