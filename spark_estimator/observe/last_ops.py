"""The format of the engine's last ops in a rank's log, by which a launcher separates them from the rank's own lines."""

from __future__ import annotations

import re

#: Format arguments: how many ops follow, a line each, and how many were recorded.
HEAD = "the last %d of %d noted ops:"

_HEAD = re.compile(re.escape(HEAD).replace("%d", r"(\d+)") + "$")


def announced(line: str) -> int:
    """How many of the lines that follow list ops; 0 unless `line` is such a `HEAD`."""
    match = _HEAD.search(line)
    return int(match[1]) if match else 0
