"""Ends a writer whose rank has ended and whose store hangs: no other process would notice it."""

from __future__ import annotations

import select
import signal
import threading
from datetime import timedelta

# How long a writer whose rank has ended waits for its store, and for other ranks' parts.
GRACE = timedelta(seconds=60)
# A store may take a copy in one call, and return when it is sent.
_SLOWEST_BYTES_PER_SECOND = 5_000_000


class OrphanLimit:
    """From the rank's end on, the kernel ends this process if it is not postponed in time: also in a call that hangs.

    Args:
        wake: the read end of a pipe that ends with the rank.
    """

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._is_orphan = False
        self._size = 0
        # As inherited, the signal may be ignored or blocked.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        threading.Thread(target=self._await_end, name="spark_estimator end of rank", daemon=True).start()

    def postpone(self, size: int | None = None) -> None:
        """Count from now on; `size`: bytes of the copy that is written from now on; None: the same as before."""
        self._size = self._size if size is None else size
        if self._is_orphan:
            signal.setitimer(signal.ITIMER_REAL, GRACE.total_seconds() + self._size / _SLOWEST_BYTES_PER_SECOND)

    def _await_end(self) -> None:
        poll = select.poll()
        poll.register(self._wake, 0)  # which leaves POLLHUP
        poll.poll()
        self._is_orphan = True
        self.postpone()
