"""Horovod's collectives for JAX, on pytrees in host memory: ``import spark_estimator.jax as hvd``.

A leaf is copied to the host, the ranks exchange it through the engine, and the result is copied back to the leaf's
device. Collectives within a compiled function are JAX's own: ``jax.distributed.initialize()`` needs no arguments on a
rank.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_estimator.extensions.jax.trees import *  # noqa: F403  # its __all__

_EXTENSION = "spark_estimator.extensions.jax.trees"
# Without an import of JAX, which a look for another name must not cause.
_NAMES = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather", "allreduce", "barrier", "broadcast",
    "cross_rank", "cross_size", "init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name from the extension (PEP 562)."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXTENSION), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
