"""Ranks with PyTorch that stay alive between tests.

Each call is a membership of its own: the ranks join before it and leave after it, whatever came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import rank_pool


class RankPool(rank_pool.RankPool):
    """`size` ranks that call what they are given, each time as members of a new job."""

    def __init__(self, size: int) -> None:
        super().__init__(size, _in_a_job)


def _in_a_job(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    import torch

    import spark_estimator.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    try:
        torch.manual_seed(1)
        return function(rank, *args)
    finally:
        hvd.shutdown()
