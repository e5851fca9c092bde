"""Horovod's collectives for JAX, on pytrees in host memory: ``import spark_estimator.jax as hvd``.

A leaf is copied to the host, the ranks exchange it through the engine, and the result is copied back to the leaf's
device. Collectives within a compiled function are JAX's own: ``jax.distributed.initialize()`` needs no arguments on a
rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

if TYPE_CHECKING:
    from spark_estimator.extensions.jax.trees import *  # noqa: F403  # its __all__

_EXTENSION = "spark_estimator.extensions.jax.trees"
# Without an import of JAX, which a look for another name must not cause.
_NAMES = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allreduce", "barrier", "broadcast",
    "cross_rank", "cross_size", "init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip
__getattr__, __dir__ = bind_names(__name__, dict.fromkeys(_NAMES, _EXTENSION))
