"""The heading of the flight recorder's lines in a rank's log, by which a launcher recognizes them."""

from __future__ import annotations

import re

#: Format arguments: how many operations follow, a line each, and how many were recorded.
HEAD = "the last %d of %d recorded operations:"

_HEAD = re.compile(re.escape(HEAD).replace("%d", r"(\d+)") + "$")


def parse_head(line: str) -> int:
    """Return how many of the lines that follow list operations; 0 unless `line` is such a `HEAD`."""
    match = _HEAD.search(line)
    return int(match[1]) if match else 0
