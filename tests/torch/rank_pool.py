"""Ranks with PyTorch that stay alive between tests.

Each call is a separate membership: the ranks join before it and leave after it, also if it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tests import rank_pool


class RankPool(rank_pool.RankPool):
    """`size` ranks that call the functions that they receive, each time as members of a new job.

    Args:
        size: number of ranks.
        environ: variables for the ranks. With the fakes' paths among them, CPU tensors count as tensors on GPUs.
    """

    def __init__(self, size: int, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(size, _in_a_job, environ)


def _in_a_job(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    import torch

    import spark_estimator.torch as hvd

    torch.set_num_threads(1)
    if "SPARK_ESTIMATOR_CUDA_LIBRARY" in os.environ:
        from tests import fake_gpus
        from tests.torch.pretended_gpus import pretend

        pretend(fake_gpus.device_of(rank))
    hvd.init()
    try:
        torch.manual_seed(1)
        return function(rank, *args)
    finally:
        hvd.shutdown()
