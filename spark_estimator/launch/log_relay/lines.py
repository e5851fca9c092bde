"""A worker's output as lines: cutting bytes into lines, and keeping the last ones for the report of a failure."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

from spark_estimator.observe import last_ops

# A longer line is passed on in pieces: a program that never ends its lines must not fill the memory of its supervisor.
MAX_LINE_BYTES = 16 << 10
# Progress bars end what they print with a carriage return only.
_END = re.compile(rb"\r?\n|\r(?!\n)")


class LineSplitter:
    """Splits a stream of bytes into whole lines, as text without their ends."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[str]:
        """The lines that `received` completes. Bytes that are not UTF-8 become U+FFFD."""
        self._pending += received
        # A carriage return at the very end may be the first half of "\r\n".
        half_end = b"\r" if self._pending.endswith(b"\r") else b""
        *lines, rest = _END.split(self._pending.removesuffix(half_end))
        while len(rest) > MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._pending = rest + half_end
        return [line.decode("utf-8", "replace") for line in lines]

    def flush(self) -> list[str]:
        """The remaining bytes without an end of line, as a line; none if there are none."""
        rest, self._pending = self._pending.removesuffix(b"\r"), b""
        return [rest.decode("utf-8", "replace")] if rest else []


class LastLines:
    """Keeps the last `most` lines that the rank itself printed.

    Leaves out the engine's list of its last ops: it is in the log, and as long as the whole report.
    """

    def __init__(self, most: int) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=most)
        self._ops = 0

    def add(self, stream: str, line: str) -> None:
        """Adds a line of "stdout" or "stderr", without its line end."""
        if stream == "stderr":  # where the log is written
            if self._ops:
                self._ops -= 1
                return
            self._ops = last_ops.announced(line)
            if self._ops:
                return
        self._lines.append(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)
