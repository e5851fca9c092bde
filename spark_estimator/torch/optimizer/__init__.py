"""``DistributedOptimizer``: an optimizer whose gradients are averages over the ranks, exchanged while they are made."""

from spark_estimator.torch.optimizer.horovod_class import _DistributedOptimizer as _DistributedOptimizer
from spark_estimator.torch.optimizer.optimizer import DistributedMethods, DistributedOptimizer

__all__ = ["DistributedMethods", "DistributedOptimizer"]
