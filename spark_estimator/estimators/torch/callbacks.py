"""The user's callbacks of a PyTorch training, which run on every rank and can end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.estimators.checks import describe_value


class Callback:
    """Anything with some of these methods may be among ``callbacks=``; this class is there to be subclassed.

    They run on every rank, in the process that trains, and all ranks call them at the same point: all ranks can take
    part in a collective inside of one. Callbacks are pickled to the ranks; what they store there is not returned to the
    driver. Printed lines appear where the ranks' lines do; `spark_estimator.log_to_driver` reaches the driver.
    """

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Run before the first epoch of this process: a training that resumes from a checkpoint begins there.

        The optimizer's learning rates are those of a step of all ranks, and those that are set are in force.

        All ranks call it again when a lost one was replaced (``max_restarts``).
        """

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before an epoch, counted from 0."""

    def on_batch_begin(self, step: int) -> None:
        """Run before a batch; `step` as of `on_batch_end`. Lightning calls it on_train_batch_start."""

    def on_batch_end(self, step: int, loss: float) -> None:
        """Run after a batch, and after the optimizer's step if that ends with it.

        The epoch's last step, if it has fewer batches than `backward_passes_per_step`, comes after this.

        Args:
            step: batches of the epoch that were done before.
            loss: of this rank's rows of the batch.
        """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> bool | None:
        """Run after an epoch, when its checkpoint is written.

        Args:
            logs: the epoch's entry in the history, the same on all ranks.

        Returns:
            True on any rank: the training ends here, on all ranks.
        """
        return None

    def on_train_end(self) -> None:
        """Run after the last epoch."""


def _is_true(answer: Any) -> bool:
    """Return whether a callback returned True: Python's, numpy's (as a comparison of numpy numbers gives) or a
    tensor's.
    """
    if isinstance(answer, torch.Tensor):
        return answer.dtype == torch.bool and answer.numel() == 1 and bool(answer)
    return isinstance(answer, (bool, numpy.bool_)) and bool(answer)


_METHODS = [name for name in vars(Callback) if name.startswith("on_")]


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise TypeError for objects that would never be called.

    Raises:
        TypeError: one is a class, or has none of the methods of `Callback`.
    """
    for callback in callbacks:
        if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in _METHODS):
            raise TypeError(
                f"callbacks must contain objects with at least one of the methods {', '.join(_METHODS)}, as "
                f"spark_estimator.estimators.torch.callbacks.Callback has them; got {describe_value(callback)}."
            )


class TorchCallbacks:
    """Calls the methods that there are. Without callbacks it costs nothing, and the ranks exchange nothing."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks

    def call(self, method: str, *args: Any) -> list[Any]:
        """Return the result of each callback; None if it lacks the method."""
        result = [getattr(callback, method, None) for callback in self._callbacks]
        return [None if item is None else item(*args) for item in result]

    def find_calls(self, method: str) -> Callable[..., None] | None:
        """Return what calls a method of all callbacks; None if none overrides it."""
        methods = [getattr(callback, method, None) for callback in self._callbacks]
        base = getattr(Callback, method)
        calls = [each for each in methods if each is not None and getattr(each, "__func__", each) is not base]

        def call(*args: Any) -> None:
            for each in calls:
                each(*args)

        return call if calls else None

    def call_epoch_end(self, epoch: int, logs: dict[str, Any]) -> bool:
        """Call `on_epoch_end`. Return whether any callback of any rank ends the training. A collective."""
        if not self._callbacks:
            return False
        stops = any(_is_true(answer) for answer in self.call("on_epoch_end", epoch, logs))
        votes = hvd.allreduce(torch.tensor([float(stops)]), op=hvd.Sum, name="a callback ends the training")
        return bool(votes.item())
