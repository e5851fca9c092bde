"""The last lines that a rank has printed, for the report of its failure."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from spark_estimator.observe import last_ops


class LastLines:
    """Keeps the last `most` lines that are the rank's own.

    What the engine notes of its last ops stands in the log for who looks for it there; it is as long as the rest of a
    report, and would leave nothing of what the rank itself has said at last.
    """

    def __init__(self, most: int) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=most)
        self._ops = 0

    def add(self, stream: str, line: str) -> None:
        """One more line of "stdout" or "stderr", without its end."""
        if stream == "stderr":  # where the log goes
            if self._ops:
                self._ops -= 1
                return
            self._ops = last_ops.announced(line)
            if self._ops:
                return
        self._lines.append(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)
