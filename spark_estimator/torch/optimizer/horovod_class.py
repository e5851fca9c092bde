"""Horovod's class of the optimizers that `DistributedOptimizer` returns, for type annotations and ``isinstance``."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

import torch

from spark_estimator.torch.optimizer.optimizer import DistributedMethods


class _DistributedOptimizer(torch.optim.Optimizer, metaclass=ABCMeta):
    """Every optimizer that `DistributedOptimizer` has returned is an instance of it. It makes none.

    Raises:
        TypeError: on a call, also of a class with these methods, as Horovod makes one.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(
            "_DistributedOptimizer makes no optimizers: call horovod.torch.DistributedOptimizer(optimizer, "
            "named_parameters=model.named_parameters())."
        )


_DistributedOptimizer.register(DistributedMethods)
