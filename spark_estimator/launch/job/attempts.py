"""Restarts a failed job as a whole, within the caller's number of restarts and the job's time limit.

What is retried, and what is not -------------------------------
- A rank that died, raised or exited, an executor that was lost, a job that Spark ended: the next attempt starts all
  ranks again, as new processes with a new key. An exception of the user's own function counts, as with torchrun: from
  outside, a bug and a store that was unavailable for a moment look the same.
- Not retried is a job that would fail again or was ended on purpose: an error before the start, a function that the
  workers cannot load, a value that cannot be returned, a start that exceeds its time limit, a job that was cancelled,
  interrupted or reached its time limit.
- Nothing is kept from one attempt for the next: a function that is to continue where it was writes checkpoints, and
  reads the last one when `ATTEMPT_VARIABLE` is more than 1.
"""

from __future__ import annotations

import itertools
import math
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
from spark_estimator.observe.driver_log import announce

_FINAL = (ResultError, StartTimeoutError, JobTimeoutError, JobCancelledError)
_MAX_STORY_CHARACTERS = 500
#: Waits of the standard library overflow above some 9e9 seconds.
MAX_SECONDS = 1_000_000_000
_T = TypeVar("_T")


def to_timedelta(name: str, seconds: float) -> timedelta:
    """Return the argument `name`, in seconds. Raises TypeError, ValueError: it is none up to `MAX_SECONDS`."""
    if type(seconds) not in (int, float):
        raise TypeError(f"{name} must be a number of seconds; got {seconds!r}.")
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} must be a number of seconds above 0; got {seconds!r}.")
    if seconds > MAX_SECONDS:
        raise ValueError(f"{name} must be at most {MAX_SECONDS} seconds; got {seconds!r}.")
    return timedelta(seconds=seconds)


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
    def from_arguments(cls, max_restarts: int, timeout: float | None) -> Limits:
        """Make limits from a user's arguments, in seconds. Raises TypeError, ValueError: one can't be used."""
        if type(max_restarts) is not int:
            raise TypeError(f"max_restarts must be an int, the number of restarts; got {max_restarts!r}.")
        if max_restarts < 0:
            raise ValueError(f"max_restarts must be at least 0; got {max_restarts}.")
        if timeout is None:
            return cls(max_restarts)
        return cls(max_restarts, to_timedelta("timeout", timeout))


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

    def limit_wait(self, duration: timedelta) -> timedelta:
        """Return `duration`, or the caller's remaining time if that is shorter."""
        return (
            duration
            if self.until is None
            else min(duration, timedelta(seconds=max(self.until - time.monotonic(), 0.0)))
        )

    def enforce_timeout(
        self, function: str, size: int, begun: Collection[int], hindrance: Callable[[], str] = lambda: ""
    ) -> None:
        """End a job that takes too long. Called now and then while it runs. Raises JobTimeoutError: the time is over.

        Args:
            function, size: what runs, on how many ranks.
            begun: those whose user code has begun.
            hindrance: a sentence on what keeps the others from it, if that is known.
        """
        if self.until is None or self.timeout is None or time.monotonic() < self.until:
            return
        missing = sorted(set(range(size)) - set(begun))
        others = f"{len(missing) - 1} other ranks" if missing[2:] else f"rank {missing[-1]}" if missing else ""
        which = f"rank {missing[0]} and {others}" if missing[1:] else others
        at = f"{which} had not started" if missing else "all were running"
        why = f" {sentence}" if missing and (sentence := hindrance()) else ""
        attempt = f", in attempt {self.number}" if self.number > 1 else ""
        raise JobTimeoutError(
            f"{function} on {size} ranks did not end within {self.timeout.total_seconds():g} seconds "
            f"(timeout){attempt}: {at}. All ranks were stopped.{why} If the job needs longer, raise timeout."
        )


def run_attempts(
    run: Callable[[Attempt], _T],
    limits: Limits,
    function: str,
    *,
    recover: Callable[[Attempt], None] = lambda attempt: None,
    replaced: Callable[[], int] = lambda: 0,
) -> _T:
    """Call `run` until it succeeds, or fails in a way that ends the job.

    Args:
        run: makes one attempt; nothing of it is left when it returns or raises.
        function: what is run, for messages.
        recover: is called before each attempt but the first; waits until there is room for it.
        replaced: how many lost ranks the attempts have replaced: each counts as a restart.

    Returns:
        What `run` returned.

    Raises:
        JobFailedError: of the last attempt; its text and its `earlier` contain those before.
        PreflightError: there was no next attempt, or none at all.
        KeyboardInterrupt: the user has interrupted it; its text confirms that the ranks have ended.
    """
    until = None if limits.timeout is None else time.monotonic() + limits.timeout.total_seconds()
    earlier: list[JobFailedError] = []
    for number in itertools.count(1):
        attempt = Attempt(number, until, limits.timeout)
        try:
            if earlier:
                recover(attempt)
            return run(attempt)
        except JobFailedError as error:
            error.earlier = tuple(earlier)
            attempts = limits.max_restarts + 1 - replaced()
            if number >= attempts or isinstance(error, _FINAL) or error.kind == NOT_LOADED:
                error.args = (f"{error}{_describe_history(number, attempts, earlier)}",)
                raise
            announce(f"attempt {number} of {attempts} failed: {_summarize(error)}; restarting all ranks")
            earlier.append(error)
        except KeyboardInterrupt:
            # A new exception without a cause: the stack of this process, usually inside Java's gateway, does not help
            # the user.
            raise KeyboardInterrupt(f"{function} was interrupted; all of its ranks were stopped") from None
        except PreflightError as error:
            if earlier:
                attempts = limits.max_restarts + 1 - replaced()
                error.args = (f"{error}{_describe_history(number, attempts, earlier)}",)
                raise error from earlier[-1]
            raise
    raise AssertionError("unreachable: an attempt returns or raises")


def _describe_history(number: int, attempts: int, earlier: list[JobFailedError]) -> str:
    """Return the text below the error of attempt `number`; '' if there were no others."""
    if not earlier:
        return ""
    lines = [f"This was attempt {number} of {attempts}. Earlier attempts:"]
    lines += [f"  attempt {index}: {_summarize(error)}" for index, error in enumerate(earlier, start=1)]
    return "\n" + "\n".join(lines)


def _summarize(error: JobFailedError) -> str:
    """Return the failed rank, its host and the reason, in one line."""
    return str(error).split("\n", 1)[0][:_MAX_STORY_CHARACTERS].rstrip(".")
