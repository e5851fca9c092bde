"""Horovod's names and warnings around a `DistributedOptimizer` that programs probe for, and do not need here."""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any

import torch

from spark_estimator.torch.collectives.ops import allreduce_async_


class Synchronization(Enum):
    """Who sees to it that the gradients of the coming step are averages."""

    BY_STEP = "step() does."
    CALLED = "The user's call of synchronize() has."
    SKIPPED = "skip_synchronize(): step() takes them as they are."


def warn_of_second_exchange() -> None:
    """The warning for ``step()`` after ``synchronize()``, which is slow in Horovod, at the line that called step()."""
    warnings.warn(
        "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). Horovod "
        "would exchange the gradients twice; this package does not. Call step() in that context to avoid the warning.",
        stacklevel=4,
    )


class HorovodNames:
    """``_parameter_names`` and ``_allreduce_grad_async``: a base class of `DistributedMethods`."""

    _distributed: Any
    param_groups: list[dict[str, Any]]

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The parameters' names: those of named_parameters, else Horovod's ``allreduce.noname.i.j``."""
        names: dict[int, str] = self._distributed.names
        return {
            param: str(names.get(id(param), f"allreduce.noname.{group_number}.{number}"))
            for group_number, group in enumerate(self.param_groups)
            for number, param in enumerate(group["params"])
        }

    def _allreduce_grad_async(self, param: torch.Tensor) -> tuple[int, None]:
        """Reduces a parameter's gradient once more, in place. Collective.

        In Horovod programs call it for gradients that no hook has sent. Here gradients are averages when
        ``backward()`` returns, and averages of averages are the same; with ``op=hvd.Sum`` it adds again.

        Returns:
            A handle for ``hvd.synchronize``, and None, where Horovod has its compressor's context.
        """
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        name = f"allreduce.{self._parameter_names[param]}"
        options = self._distributed.options
        process_set = {} if options.process_set is None else {"process_set": options.process_set}
        return allreduce_async_(param.grad, name=name, op=options.op, **process_set), None
