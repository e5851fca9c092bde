"""A worker's output as lines: cut from bytes, without TensorFlow's first ones, and the last ones for a report."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

from spark_estimator.observe import last_ops

# A longer line is passed on in pieces: a program that never ends its lines must not fill the memory of its supervisor.
MAX_LINE_BYTES = 16 << 10
# Progress bars end what they print with a carriage return only.
_END = re.compile(rb"\r?\n|\r(?!\n)")
# What TensorFlow prints in every process before it reads TF_CPP_MIN_LOG_LEVEL. Unknown lines may explain a failure. Of
# errors there are those of a build that links CUDA's libraries twice.
_START_UP = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler flags\."
    r"|(?:[IW]\d{4}|[\d-]+ [\d:.]+: [IW]) [^\]]*\] (?:oneDNN custom operations are on\.|Could not find cuda drivers on"
    r"|This TensorFlow binary is optimized to use|TF-TRT Warning: Could not find TensorRT$"
    r"|computation placer already registered\.|XLA service 0x| *StreamExecutor device \(\d+\): ).*"
    r"|(?:[WE]\d{4}|[\d-]+ [\d:.]+: [WE]) [^\]]*\] Unable to register cu(?:FFT|DNN|BLAS) factory: .* been registered"
)


class LineSplitter:
    """Splits a stream of bytes into whole lines, as text without their ends."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[str]:
        """Return the lines that `received` completes. Bytes that are not UTF-8 become U+FFFD."""
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
        """Return the remaining bytes without an end of line, as a line; none if there are none."""
        rest, self._pending = self._pending.removesuffix(b"\r"), b""
        return [rest.decode("utf-8", "replace")] if rest else []


class StartUpLines:
    """Leaves out the lines that TensorFlow prints on stderr at its start, and counts them."""

    _count = 0

    def without(self, lines: list[str]) -> list[str]:
        """Return the other lines; where some were left out, a line with their number is before the next one."""
        others: list[str] = []
        for line in lines:
            if _START_UP.fullmatch(line):
                self._count += 1
            else:
                others += [*self.flush(), line]
        return others

    def flush(self) -> list[str]:
        """Return how many were left out, as a line; none if there were none."""
        count, self._count = self._count, 0
        return [f"[{count} start-up lines of TensorFlow left out; TF_CPP_MIN_LOG_LEVEL=0 shows them]"] if count else []


class LastLines:
    """Keeps the last `most` lines that the rank itself printed.

    Leaves out the engine's list of its last ops: it is in the log, and as long as the whole report.
    """

    def __init__(self, most: int) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=most)
        self._ops = 0

    def add(self, stream: str, line: str) -> None:
        """Add a line of "stdout" or "stderr", without its line end."""
        if stream == "stderr":  # where the log is written
            if self._ops:
                self._ops -= 1
                return
            self._ops = last_ops.parse_head(line)
            if self._ops:
                return
        self._lines.append(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)
