"""Says in which collectives a rank waits for others, to those that wait for it."""

from __future__ import annotations

from collections.abc import Iterable

from spark_estimator.collectives.engine import Engine

# Enough to see which call is another on this rank than on the rest; a thousand gradients must not fill a log.
_SHOWN = 10


def told(engines: Iterable[Engine], now: float) -> str:
    """The collectives that this rank has submitted and that are not done, the oldest first, in one sentence.

    Args:
        engines: of this rank, of all groups that it is in.
        now: on the monotonic clock, in seconds.
    """
    waiting = []
    for engine in engines:
        where = f" of process set {engine.process_set}" if engine.process_set else ""
        for op, name, since in list(engine.pending.values()):
            waiting.append((since, f"{op.name.lower()} {name!r}{where} ({now - since:.0f} s)"))
    if not waiting:
        return "It waits in no collective itself."
    waiting.sort()
    more = f" and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
    return f"It waits for others itself, in {', '.join(text for _, text in waiting[:_SHOWN])}{more}."
