"""Ranks train equally many batches and stop after the same epoch, whichever of them decides to.

A rank that leaves ``fit`` before the others would have them wait for its gradients. `EarlyStopping` on a metric of its
own does that, as does a data set that is one batch shorter.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.likeness import agree
from spark_estimator.keras.wrapping import exchange_of
from spark_estimator.log import logger

_log = logger(__name__)


def begin_together(model: Any, params: dict[str, Any] | None) -> None:
    """At the start of ``fit``: compares the number of batches, and has all ranks stop when one does. All ranks call it.

    After an epoch's last callback the ranks tell one another whether ``model.stop_training`` is set, and set it when
    any rank has. `History` is what Keras calls after the user's callbacks, so that is where they meet.

    Raises:
        MismatchError: the ranks have unequal numbers of batches or epochs.
    """
    if context.size() == 1:
        return
    if exchange_of(getattr(model, "optimizer", None)) is not None:
        given = params or {}
        lines = [f"{given.get('steps')} batches in an epoch", f"{given.get('epochs')} epochs"]
        subject = "how much there is to train (give model.fit the same steps_per_epoch= and epochs= on all ranks)"
        agree(lines, name="keras.fit.agreement", subject=subject)
    history = getattr(model, "history", None)
    if history is None or getattr(history, "_spark_estimator_agrees", False):
        return
    history._spark_estimator_agrees = True
    on_epoch_end = history.on_epoch_end

    @functools.wraps(on_epoch_end)
    def then_agree(epoch: int, logs: Any = None) -> None:
        on_epoch_end(epoch, logs)
        stop_together(model, epoch)

    history.on_epoch_end = then_agree


def stop_together(model: Any, epoch: int) -> None:
    """Sets ``model.stop_training`` where any rank has it set. Collective."""
    if context.size() == 1:
        return
    wants = bool(model.stop_training)
    stops = arrays.allreduce(numpy.array([wants], numpy.uint8), ReduceOp.MAX, "keras.stop_training")
    if stops[0] and not wants:
        _log.info("training stops after epoch %d: another rank has stopped it", epoch + 1)
        model.stop_training = True
