"""Cuts a worker's output into lines."""

from __future__ import annotations

import re

# A longer line is passed on in pieces: a program that never ends its lines must not fill the memory of its supervisor.
MAX_LINE_BYTES = 16 << 10
# Progress bars end what they print with a carriage return only.
_END = re.compile(rb"\r?\n|\r(?!\n)")


class LineSplitter:
    """Bytes in, as they come; whole lines out, as text without their ends."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[str]:
        """The lines that `received` completes. Bytes that are not UTF-8 become U+FFFD."""
        self._pending += received
        # A carriage return at the very end may be the first half of "\r\n".
        held = b"\r" if self._pending.endswith(b"\r") else b""
        *lines, rest = _END.split(self._pending.removesuffix(held))
        while len(rest) > MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._pending = rest + held
        return [line.decode("utf-8", "replace") for line in lines]

    def flush(self) -> list[str]:
        """What is left without an end of line, as a line, or nothing."""
        rest, self._pending = self._pending.removesuffix(b"\r"), b""
        return [rest.decode("utf-8", "replace")] if rest else []
