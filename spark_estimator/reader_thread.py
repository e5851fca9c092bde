"""Threads that serve one connection or pipe: any end of one is reported to the code that waits for its data."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ReaderThread(threading.Thread):
    """A daemon thread, not yet started.

    Args:
        serve: runs until the connection ends.
        ended: called once, in the thread, with what `serve` has raised, also MemoryError and RecursionError, or None
            if it has returned. It reports the connection as lost.
        name: of the connection.
    """

    def __init__(
        self, serve: Callable[[], object], ended: Callable[[BaseException | None], object], *, name: str
    ) -> None:
        super().__init__(name=f"spark_estimator {name}", daemon=True)
        self._serve = serve
        self._ended = ended

    def run(self) -> None:
        """Serve the connection, and report its end."""
        reason: BaseException | None = None
        try:
            self._serve()
        except BaseException as error:
            reason = error.with_traceback(None)  # its frames may hold the memory that is missing
        self._ended(reason)
