"""Where the time of a rank's training goes: waiting for input, computing, waiting for other ranks, the network.

Five clocks run from the start of the process and are never reset; any two samples of them give the division of the time
between the two:

* input: the training thread has waited in `time_input` for its next batch;
* blocked: a caller has waited in the engine for collectives. Those that run beside computing do not count;
* waited, executed: the engine has waited for other ranks to submit, and has run collectives;
* sending: the engine has slept while data of this rank had not left its host yet, also beside computing;
* the monotonic clock. What is neither input nor blocked is computing.

A step costs nothing here: samples are taken at the end of a step, once a second for the progress report, and where an
epoch begins and ends. Without an engine nothing is blocked. Memberships that have ended keep their share.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from spark_estimator.observe import spans

T = TypeVar("T")
P = ParamSpec("P")

_MAX_HOST = 64
_DIGITS = 6


class EngineTimes(NamedTuple):
    """Seconds that a membership's engines have counted.

    Attributes:
        blocked, waited, executed, sending: see above.
    """

    blocked: float = 0.0
    waited: float = 0.0
    executed: float = 0.0
    sending: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The clocks of one rank at the end of a step, in seconds.

    Attributes:
        at: on its host's monotonic clock.
        steps: that its optimizers have made.
        input, blocked, waited, executed, sending: see above.
        host: its name.
    """

    at: float
    steps: int
    input: float = 0.0
    blocked: float = 0.0
    waited: float = 0.0
    executed: float = 0.0
    sending: float = 0.0
    host: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {name: round(each, _DIGITS) if type(each) is float else each for name, each in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: object) -> Sample:
        """Make the sample from what `to_dict` returned. Raises ValueError if the value is invalid."""
        kinds = {"steps": int, "host": str}
        if not isinstance(fields, dict) or fields.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("a sample of step times with unknown fields")
        for name, value in fields.items():
            if not isinstance(value, kinds.get(name, (int, float))):
                raise ValueError(f"field {name!r} of a sample of step times is {value!r}")
        return cls(**{**fields, "host": fields["host"][:_MAX_HOST]})


class StepParts(NamedTuple):
    """The parts of some time, in seconds; the history's entries have these names."""

    input: float
    compute: float
    peers: float
    network: float


def divide(before: Sample, after: Sample) -> StepParts | None:
    """Return the parts of the time between two samples of a process; None: they are of two, or in the wrong order.

    The engine's clocks divide what was blocked: all that it did not run collectives was waiting for ranks. If it has
    run more than that, some of it beside computing, both are reduced in proportion.
    """
    seconds = after.at - before.at
    names = ("input", "blocked", "waited", "executed")
    fed, blocked, waited, executed = (getattr(after, name) - getattr(before, name) for name in names)
    if seconds <= 0 or min(fed, blocked, waited, executed) < 0:
        return None
    blocked = min(blocked, seconds)
    fed = min(fed, seconds - blocked)
    engine = waited + executed
    peers = blocked - executed if engine <= blocked else blocked * waited / engine
    return StepParts(fed, seconds - fed - blocked, peers, blocked - peers)


_NONE = EngineTimes()
_input = 0.0
_ended = _NONE  # of memberships that have ended
_read: Callable[[], EngineTimes] | None = None
_host = ""


def follow_engines(read: Callable[[], EngineTimes] | None, host: str = "") -> None:
    """Take the engines' clocks from `read` from now on; None: the membership ends, whose `read` can still be called."""
    global _read, _ended, _host
    if _read is not None:
        _ended = _add(_read())
    _read, _host = read, host[:_MAX_HOST] or _host


def take_sample(steps: int = 0) -> Sample:
    """Return this process's clocks as they are now, after this number of steps."""
    blocked, waited, executed, sending = _add(_NONE if _read is None else _read())
    return Sample(time.monotonic(), steps, _input, blocked, waited, executed, sending, _host)


def _add(now: EngineTimes) -> EngineTimes:
    """Add what memberships that have ended had counted."""
    return EngineTimes(*(ended + since for ended, since in zip(_ended, now, strict=True)))


def time_input(batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches, and count as input what the caller waits for them. Not one inside another."""
    global _input
    iterator = iter(batches)
    try:
        while True:
            began = time.monotonic()
            try:
                with spans.span(spans.INPUT):
                    batch = next(iterator)
            except StopIteration:
                return
            finally:
                _input += time.monotonic() - began
            yield batch
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def counts_input(iterate: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Has what waits for the next item of an iterator that the function returns count as input; a decorator."""

    @functools.wraps(iterate)
    def iterate_and_count(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return time_input(iterate(*args, **kwargs))

    return iterate_and_count
