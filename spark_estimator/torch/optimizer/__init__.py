"""``DistributedOptimizer``: an optimizer whose gradients are averages over the ranks, exchanged while they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_estimator.torch.optimizer.optimizer import DistributedMethods, DistributedOptimizer

__all__ = ["DistributedMethods", "DistributedOptimizer"]


def __getattr__(name: str) -> Any:
    """Loads a name at its first use: compression needs this package's buckets, and the optimizer compression."""
    if name == "_DistributedOptimizer":
        from spark_estimator.torch.optimizer.horovod_class import _DistributedOptimizer

        return _DistributedOptimizer
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_estimator.torch.optimizer import optimizer

    return getattr(optimizer, name)
