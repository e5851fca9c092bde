"""Ranks with TensorFlow that stay alive between tests: importing it takes longer than all that is tested with it.

Each call is a separate membership: the ranks join before it and leave after it, also if it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import rank_pool

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class RankPool(rank_pool.RankPool):
    """`size` ranks that call the functions that they receive, each time as members of a new job."""

    def __init__(self, size: int) -> None:
        super().__init__(size, _in_a_job, QUIET | {"KERAS_BACKEND": "tensorflow"})


def _in_a_job(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    import tensorflow as tf

    import spark_estimator.tensorflow as hvd

    if not getattr(tf, "_threads_are_few", False):
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf._threads_are_few = True
    hvd.init(process_sets="dynamic")
    try:
        tf.random.set_seed(1)
        return function(rank, *args)
    finally:
        hvd.shutdown()
