"""Runs a function on ranks that are a torch.distributed process group of this package's backend meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def in_group(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(rank, *args)` between ``init_process_group("spark_estimator")`` and ``destroy_process_group()``."""

    def run(rank: int, *args: Any) -> Any:
        import torch.distributed as dist

        import spark_estimator.torch.process_group  # noqa: F401

        dist.init_process_group("spark_estimator")
        try:
            return function(rank, *args)
        finally:
            dist.destroy_process_group()

    return run
