"""How ``check.py`` measures on a GPU: medians, by all ranks together or by one while the others wait."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import spark_estimator.torch as hvd

_WARM_UP = 3


def seconds_of(function: Callable[[], object], times: int = 20, *, in_a_row: int = 1, together: bool = True) -> float:
    """The median of how long one call takes, to its end on the GPU.

    Args:
        function: what is measured.
        times: how often.
        in_a_row: the number of calls that are timed together, and divided: what it costs to begin and to end counts
            less.
        together: all ranks begin at the same time.
    """
    for _ in range(_WARM_UP):
        function()
    return statistics.median(once(function, in_a_row, together) for _ in range(times))


def once(function: Callable[[], object], in_a_row: int = 1, together: bool = True) -> float:
    """How long one call takes, to its end on the GPU; see `seconds_of`."""
    torch.cuda.synchronize()
    if together:
        hvd.barrier()
    began = time.perf_counter()
    for _ in range(in_a_row):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / in_a_row


def interleaved(functions: list[Callable[[], object]], times: int) -> list[float]:
    """Medians of several functions that take turns, so that none has the better moments. All ranks begin together."""
    for function in functions * _WARM_UP:
        function()
    taken = [[once(function) for function in functions] for _ in range(times)]
    return [statistics.median(each) for each in zip(*taken, strict=True)]


def by_one_rank(measure: Callable[[], float]) -> float:
    """What rank 0 measures while all other ranks wait, for all of them."""
    seconds = measure() if hvd.rank() == 0 else 0.0
    torch.cuda.synchronize()
    hvd.barrier()
    return float(hvd.broadcast_object(seconds, 0))
