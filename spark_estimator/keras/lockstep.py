"""Ranks train equally many batches and stop after the same epoch, whichever of them decides to.

If a rank left ``fit``, or an epoch, before the others, these would wait for its gradients. `EarlyStopping` on one
rank's metric does that, as do `TerminateOnNaN` and a data set that is one batch shorter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.keras.optimizers import read_iterations
from spark_estimator.keras.wrapping import find_exchange
from spark_estimator.log import get_logger

_log = get_logger(__name__)


class KerasLockstep:
    """One rank's counts in the running epoch, until the ranks' exchange at its end.

    Args:
        history: the `History` of ``fit``, which Keras calls after the user's callbacks; it calls this from now on.
        model: what ``fit`` trains; asking `history` for it would have JAX' state copied into it after each batch.
    """

    def __init__(self, history: Any, model: Any) -> None:
        self.model = model
        self._wants_to_stop = False
        self._runs = False
        self._batches = 0
        self._steps_before = 0
        for name, then in (
            ("on_epoch_begin", self._begin),
            ("on_train_batch_end", self._hold),
            ("on_epoch_end", self._agree_to_stop),
        ):
            setattr(history, name, _follow_with(getattr(history, name), then))

    def compare_epoch(self, epoch: int) -> None:
        """Compare how many batches the ranks had in the epoch that has ended; once in each. Collective.

        A rank that arrives before the others calls join(): the others then continue without its gradients until their
        epoch ends, instead of waiting for them. Raises MismatchError, on all ranks, for unequal numbers.
        """
        if not self._runs:
            return
        self._runs = False
        if self._wants_to_stop:
            self.model.stop_training = True
        if find_exchange(getattr(self.model, "optimizer", None)) is None:
            return
        arrays.join()
        # With steps_per_execution the last execution may have had fewer batches than its number.
        steps = self._read_steps() - self._steps_before
        check_identical(
            [f"{self._batches} batches in epoch {epoch + 1}", f"{steps} steps of the optimizer in epoch {epoch + 1}"],
            name="keras.epoch.agreement",
            subject="how much there was to train (give model.fit a steps_per_epoch= that the data of all ranks last "
            "for, or all ranks equally many batches)",
        )

    def _begin(self, epoch: int, logs: Any = None) -> None:
        self._runs = context.size() > 1
        self._wants_to_stop = False
        self._batches = 0
        self._steps_before = self._read_steps()

    def _hold(self, batch: int, logs: Any = None) -> None:
        # Keras would leave the epoch at once, which the other ranks continue
        self._batches = max(self._batches, batch + 1)
        if self._runs and self.model.stop_training:
            self._wants_to_stop = True
            self.model.stop_training = False

    def _agree_to_stop(self, epoch: int, logs: Any = None) -> None:
        self.compare_epoch(epoch)
        stop_together(self.model, epoch)

    def _read_steps(self) -> int:
        optimizer = getattr(self.model, "optimizer", None)
        if find_exchange(optimizer) is None:
            return 0
        return read_iterations(optimizer)


def _follow_with(method: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call_both(number: int, logs: Any = None) -> None:
        method(number, logs)
        then(number, logs)

    return call_both


def begin_together(model: Any, params: dict[str, Any] | None) -> None:
    """Compare the number of batches at the start of ``fit``, and have all ranks stop when one does. Collective.

    After an epoch's last callback the ranks compare ``model.stop_training``, and set it when any rank has set it.
    A request to stop within an epoch is held back until then. The length of a generator is known only at its end:
    ranks with epochs of different lengths raise MismatchError at the end of the longest epoch.

    Raises:
        MismatchError: the ranks have unequal numbers of batches or epochs.
    """
    if context.size() == 1:
        return
    if find_exchange(getattr(model, "optimizer", None)) is not None:
        settings = params or {}
        lines = [f"{settings.get('steps')} batches in an epoch", f"{settings.get('epochs')} epochs"]
        subject = "how much there is to train (give model.fit the same steps_per_epoch= and epochs= on all ranks)"
        check_identical(lines, name="keras.fit.agreement", subject=subject)
    history = getattr(model, "history", None)
    if history is None:
        return
    lockstep = _find_lockstep(model)
    if lockstep is None:
        history._spark_estimator_lockstep = KerasLockstep(history, model)
    else:  # a History of the user's, which may have seen another model
        lockstep.model = model


def end_epoch_together(model: Any, epoch: int) -> None:
    """Compare how many batches the ranks had, before an epoch's other exchanges. Collective. Raises MismatchError."""
    lockstep = _find_lockstep(model)
    if lockstep is not None:
        lockstep.compare_epoch(epoch)


def _find_lockstep(model: Any) -> KerasLockstep | None:
    lockstep: KerasLockstep | None = getattr(getattr(model, "history", None), "_spark_estimator_lockstep", None)
    return lockstep


def stop_together(model: Any, epoch: int) -> None:
    """Set ``model.stop_training`` where any rank has it set. Collective."""
    if context.size() == 1:
        return
    wants = bool(model.stop_training)
    stops = arrays.allreduce(numpy.array([wants], numpy.uint8), ReduceOp.MAX, "keras.stop_training")
    if stops[0] and not wants:
        _log.info("training stops after epoch %d: another rank has stopped it", epoch + 1)
        model.stop_training = True
