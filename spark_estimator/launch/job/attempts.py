"""Starts a job anew as a whole when it has failed, as often as its caller allows and within the time that it has.

What is tried again, and what is not
------------------------------------
- A rank that died, raised or exited, an executor that was lost, a job that Spark ended: the next attempt starts all
  ranks anew, as new processes with a new key. An exception of the user's own function counts, as with torchrun: from
  outside, a bug and a store that was away for a moment look alike.
- Not tried again is what would end in the same way or was meant to end: what is refused before the start, a function
  that the workers cannot load, a value that cannot be brought back, a start that takes longer than it may, a job that
  was cancelled, interrupted or ran out of its time.
- Nothing is kept from one attempt for the next: a function that is to go on where it was writes checkpoints, and reads
  the last one when `ATTEMPT_VARIABLE` is more than 1.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from spark_estimator.errors import (
    JobCancelledError,
    JobFailedError,
    JobTimeoutError,
    PreflightError,
    ResultError,
    StartTimeoutError,
)
from spark_estimator.launch.job.failures import NOT_LOADED

_FINAL = (ResultError, StartTimeoutError, JobTimeoutError, JobCancelledError)
_MAX_STORY_CHARACTERS = 500
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """How long a caller puts up with a job.

    Attributes:
        max_restarts: how many attempts may follow the first.
        timeout: for all attempts together, the wait for slots included; None: as long as they take.
    """

    max_restarts: int = 0
    timeout: timedelta | None = None

    @classmethod
    def checked(cls, max_restarts: int, timeout: float | None) -> Limits:
        """From what a user gave.

        Args:
            timeout: in seconds.

        Raises:
            TypeError, ValueError: the text quotes what cannot be used.
        """
        if type(max_restarts) is not int:
            raise TypeError(f"max_restarts is how often a failed job is started anew; it was {max_restarts!r}.")
        if max_restarts < 0:
            raise ValueError(f"max_restarts={max_restarts}: 0 is never, and the least.")
        if timeout is None:
            return cls(max_restarts)
        if type(timeout) not in (int, float):
            raise TypeError(f"timeout is a number of seconds; it was {timeout!r}.")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout={timeout!r}: a number of seconds, more than 0.")
        return cls(max_restarts, timedelta(seconds=timeout))


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks.

    Attributes:
        number: from 1.
        until: when the caller's time is over, on the clock of ``time.monotonic``; None: never.
        timeout: the time that the caller gave, for messages.
    """

    number: int = 1
    until: float | None = None
    timeout: timedelta | None = None

    def at_most(self, wanted: timedelta) -> timedelta:
        """`wanted`, or what is left of the caller's time where that is less."""
        return wanted if self.until is None else min(wanted, timedelta(seconds=max(self.until - time.monotonic(), 0.0)))

    def look_at_the_clock(
        self, function: str, size: int, begun: Collection[int], hindrance: Callable[[], str] = lambda: ""
    ) -> None:
        """To be called now and then while the job runs.

        Args:
            function, size: what runs, on how many ranks.
            begun: those whose user code has begun.
            hindrance: a sentence on what keeps the others from it, if that is known.

        Raises:
            JobTimeoutError: the time is over.
        """
        if self.until is None or self.timeout is None or time.monotonic() < self.until:
            return
        missing = sorted(set(range(size)) - set(begun))
        which = f"rank {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "") if missing else ""
        at = f"{which} had not begun" if missing else "all were at work"
        why = f" {said}" if missing and (said := hindrance()) else ""
        attempt = f", in attempt {self.number}" if self.number > 1 else ""
        raise JobTimeoutError(
            f"{function} on {size} ranks did not end within {self.timeout.total_seconds():g} seconds "
            f"(timeout){attempt}: {at}. All of them have been ended.{why}"
        )


def run_attempts(
    run: Callable[[Attempt], _T],
    limits: Limits,
    function: str,
    *,
    recover: Callable[[Attempt], None] = lambda attempt: None,
) -> _T:
    """Calls `run` until it succeeds, or fails in a way that ends the job.

    Args:
        run: makes one attempt; nothing of it is left when it returns or raises.
        function: what is run, for messages.
        recover: is called before each attempt but the first; waits until there is room for it.

    Returns:
        What `run` returned.

    Raises:
        JobFailedError: of the last attempt; its text and its `earlier` tell of those before.
        PreflightError: there was no next attempt, or none at all.
        KeyboardInterrupt: the user has interrupted it; its text says that the ranks are gone.
    """
    until = None if limits.timeout is None else time.monotonic() + limits.timeout.total_seconds()
    attempts = limits.max_restarts + 1
    earlier: list[JobFailedError] = []
    for number in range(1, attempts + 1):
        attempt = Attempt(number, until, limits.timeout)
        try:
            if earlier:
                recover(attempt)
            return run(attempt)
        except JobFailedError as error:
            error.earlier = tuple(earlier)
            if number == attempts or isinstance(error, _FINAL) or error.kind == NOT_LOADED:
                error.args = (f"{error}{_history(number, attempts, earlier)}",)
                raise
            print(
                f"spark_estimator: attempt {number} of {attempts} failed: {_story(error)}; all ranks are started anew",
                file=sys.stderr,
                flush=True,
            )
            earlier.append(error)
        except KeyboardInterrupt:
            # Anew, and from nothing: where exactly this process waited, inside Java's gateway as a rule, tells nobody
            # anything.
            raise KeyboardInterrupt(f"{function} was interrupted; all of its ranks have been ended") from None
        except PreflightError as error:
            if earlier:
                error.args = (f"{error}{_history(number, attempts, earlier)}",)
                raise error from earlier[-1]
            raise
    raise AssertionError("the last attempt returns or raises")


def _history(number: int, attempts: int, earlier: list[JobFailedError]) -> str:
    """What stands below the error of attempt `number`; '' when there were no others."""
    if not earlier:
        return ""
    lines = [f"This was attempt {number} of {attempts}. Those before:"]
    lines += [f"  attempt {index}: {_story(error)}" for index, error in enumerate(earlier, start=1)]
    return "\n" + "\n".join(lines)


def _story(error: JobFailedError) -> str:
    """Who failed, where and why, in one line."""
    return str(error).split("\n", 1)[0][:_MAX_STORY_CHARACTERS].rstrip(".")
