"""Horovod's names and warnings around a `DistributedOptimizer` that programs look up, but do not need here."""

from __future__ import annotations

import inspect
import warnings
from enum import Enum
from typing import Any

import torch

from spark_estimator.torch.collectives.ops import allreduce_async_

#: Top-level packages whose functions are between the user's call of step() and the hook that warns.
_NOT_THE_USERS = frozenset({"spark_estimator", "torch"})


class Synchronization(Enum):
    """Which call averages the gradients of the next step."""

    BY_STEP = "step() does."
    CALLED = "The user's call of synchronize() has."
    SKIPPED = "skip_synchronize(): step() takes them as they are."


def warn_about_second_exchange() -> None:
    """Warn of ``step()`` after ``synchronize()``, which is slow in Horovod, at the line that called step()."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). Horovod "
        "would exchange the gradients twice; this package does not. Call step() in that context to avoid the warning.",
        stacklevel=level + 1,
    )


class HorovodNames:
    """``_parameter_names``, ``_allreduce_grad_async`` and further names: a base class of `DistributedMethods`."""

    _distributed: Any
    param_groups: list[dict[str, Any]]

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Return the parameters' names: those of named_parameters, else Horovod's ``allreduce.noname.i.j``."""
        names: dict[int, str] = self._distributed.names
        return {
            param: str(names.get(id(param), f"allreduce.noname.{group_number}.{number}"))
            for group_number, group in enumerate(self.param_groups)
            for number, param in enumerate(group["params"])
        }

    def __getattr__(self, name: str) -> Any:
        """Return attributes that Horovod's optimizers have, where the user's own class has none of that name.

        ``_handles`` is empty: no gradient is in flight when ``backward()`` has returned.
        """
        distributed = self.__dict__.get("_distributed")
        if distributed is not None:
            if name == "_handles":
                return {}
            if name == "_requires_update":
                return {param for group in self.param_groups for param in group["params"] if param.requires_grad}
            if name == "_compression":
                return distributed.options.compression
            if name == "_groups":
                return distributed.options.groups
            if name == "_synchronized":
                return distributed.synchronization is Synchronization.CALLED
            if name == "_should_synchronize":
                return distributed.synchronization is not Synchronization.SKIPPED
        # A base class may have attributes of this kind, too.
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            return inherited(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
