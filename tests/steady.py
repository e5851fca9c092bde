"""Steps whose requests the ranks know are not negotiated again: on a machine, too, that keeps a rank from running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def check_steady(step: Callable[[int], None], known: int, times: int, engines: Sequence[Any] = ()) -> None:
    """Run steps until no rank reported a stall in the later ones, in which no rank leaves the rounds then.

    A rank that the machine did not run for a second makes another one report a stall, and for each report all leave
    the rounds at most once. All ranks call this.

    Args:
        step: gets its number.
        known: steps after which all that they submit is known.
        times: further steps.
        engines: this rank's; empty: that of all ranks.
    """
    import numpy

    from spark_estimator.collectives import arrays, context

    def count(name: str) -> list[int]:
        return [engine.read_counter(name) for engine in engines or [context.engine()]]

    def add(stalls: int) -> int:
        return int(arrays.allreduce(numpy.full(1, stalls), arrays.ReduceOp.SUM)[0])

    stalls = 1
    while stalls:
        add(0)  # known before it is needed: something new makes the others leave, which may not have counted yet
        for number in range(known):
            step(number)
        names = ("slow_phases", "cache_misses", "stalled_rounds")
        before = {name: count(name) for name in names}
        for number in range(times):
            step(number)
        after = {name: count(name) for name in names}
        stalls = add(sum(after["stalled_rounds"]) - sum(before["stalled_rounds"]))
        left = [now - then for now, then in zip(after["slow_phases"], before["slow_phases"], strict=True)]
        assert max(left) <= stalls, (before, after, stalls)
    assert after == before
