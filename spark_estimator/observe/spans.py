"""Named spans of this package's work, which a profiler of this process may record; without one a span costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

#: From the last gradient's computation until all ranks' averages are in place; of that, the wait for other ranks.
EXCHANGE = "spark_estimator.exchange"
WAIT = "spark_estimator.wait"
#: The training waits for its next batch.
INPUT = "spark_estimator.input"
#: A rank was lost: until the next round's first step may begin.
RECOVERY = "spark_estimator.recovery"

_NOTHING: AbstractContextManager[None] = nullcontext()
_recorder: Callable[[str], AbstractContextManager[object]] | None = None


def set_recorder(recorder: Callable[[str], AbstractContextManager[object]] | None) -> None:
    """Have spans recorded by what `recorder` makes of their names; None: by nothing."""
    global _recorder
    _recorder = recorder


def span(name: str) -> AbstractContextManager[object]:
    """Return a context whose time is recorded under a name, while there is a recorder."""
    return _NOTHING if _recorder is None else _recorder(name)
