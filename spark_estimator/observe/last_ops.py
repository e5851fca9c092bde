"""How a rank's log tells of the engine's last ops, so that a launcher can tell these lines from the rank's own."""

from __future__ import annotations

import re

#: Is given how many ops follow, a line each, and how many were noted.
HEAD = "the last %d of %d noted ops:"

_HEAD = re.compile(re.escape(HEAD).replace("%d", r"(\d+)") + "$")


def announced(line: str) -> int:
    """How many of the lines that follow tell of ops; 0 unless `line` is such a `HEAD`."""
    found = _HEAD.search(line)
    return int(found[1]) if found else 0
