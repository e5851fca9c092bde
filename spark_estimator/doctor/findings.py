"""The result of a check: its state, what it saw, and how to repair it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from spark_estimator.errors import SparkEstimatorError, remove_links


class Severity(enum.Enum):
    """The state of a finding: in order, harmless, or a problem for a job."""

    OK = "ok"
    NOTE = "note"
    MISSING = "MISSING"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was checked.
        state: in order, harmless, or a problem.
        text: what was found.
        fix: what to do about it; only where there is something to do.
        executor: of a cluster, the one that was checked; '' for the session as a whole, and on this machine.
    """

    name: str
    state: Severity
    text: str
    fix: str = ""
    executor: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", remove_links(self.text))

    def __str__(self) -> str:
        fix = f"\n{'':27}-> {self.fix}" if self.fix else ""
        return f"{self.state.value:>8}  {self.name:<16} {self.text}{fix}"


def attempt(name: str, check: Callable[[], str], *, state: Severity = Severity.MISSING, fix: str = "") -> Finding:
    """Run one check; what it raises becomes the finding."""
    try:
        return Finding(name, Severity.OK, check())
    except SparkEstimatorError as error:
        # This package's errors contain the remedy.
        return Finding(name, state, str(error))
    except Exception as error:
        return Finding(name, state, f"{type(error).__name__}: {error}", fix)
