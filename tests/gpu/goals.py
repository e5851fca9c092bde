"""The line that ``check.py`` prints for a figure, and whether the figure reaches its goal."""

from __future__ import annotations

import math
from typing import NamedTuple


class Line(NamedTuple):
    """A line of the report.

    Attributes:
        text: all of it, the judgement too.
        reached: whether its goal is reached; None: it has none.
    """

    text: str
    reached: bool | None = None


def at_least(what: str, value: float, goal: float, unit: str) -> Line:
    """Of a figure that should not be smaller than its goal."""
    return _judged(what, value, f"at least {goal:g} {unit}", unit, value >= goal)


def at_most(what: str, value: float, goal: float, unit: str) -> Line:
    """Of a figure that should not be larger than its goal."""
    return _judged(what, value, f"at most {goal:g} {unit}", unit, value <= goal)


def _judged(what: str, value: float, goal: str, unit: str, reached: bool) -> Line:
    reached = reached and math.isfinite(value)
    return Line(f"{what}: {value:.2f} {unit}, goal {goal}: {'reached' if reached else 'MISSED'}", reached)
