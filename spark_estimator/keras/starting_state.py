"""Rank 0's variables on every rank: weights, and what an optimizer has gathered, in one broadcast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.keras.backends import load_backend
from spark_estimator.keras.importing import backend
from spark_estimator.keras.optimizers import list_variables
from spark_estimator.keras.variables import assign, copy_value, describe_variables


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Give each variable the root's value. All ranks of the set call it, with the same variables in the same order.

    Args:
        variables: Keras variables, such as ``model.weights + model.optimizer.variables``.
        root_rank: whose values count; its number in the job.
        process_set: whose ranks take part.

    Raises:
        MismatchError: on all ranks, when their variables differ in name, type or shape; nothing was changed.
    """
    listed = list(variables)
    if context.engine(process_set).size == 1:
        return
    check_identical(
        [f"root rank {root_rank}", *describe_variables(listed)],
        name="keras.broadcast_variables.agreement",
        subject="the variables to broadcast",
        process_set=process_set,
    )
    if not listed:
        return
    # As bytes: one message for values of all types, also those that the engine cannot add up.
    values = [numpy.ascontiguousarray(copy_value(variable)) for variable in listed]
    packed = numpy.concatenate([value.reshape(-1).view(numpy.uint8) for value in values])
    received = arrays.broadcast(packed, root_rank, "keras.broadcast_variables", process_set=process_set)
    at = 0
    for variable, value in zip(listed, values, strict=True):
        chunk = received[at : at + value.nbytes].view(value.dtype)
        assign(variable, chunk.reshape(tuple(variable.shape)))
        at += value.nbytes


def broadcast_global_variables(root_rank: int) -> Any:
    """Copy, in a graph of TensorFlow 1, in which Keras 2 trains, the root's global variables into all others'.

    Raises:
        RuntimeError: there is no graph, and so no list of all variables; the message names the function to call.
    """
    if backend() == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            return load_backend("tensorflow").broadcast_in_graph(root_rank)
    raise RuntimeError(
        "broadcast_global_variables: eager execution has no list of global variables. Pass model.fit the callback "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank!r}), or call "
        f"hvd.broadcast_variables(model.weights + model.optimizer.variables, root_rank={root_rank!r})."
    )


def list_training_variables(model: Any, optimizer: Any = None) -> list[Any]:
    """Return weights and the variables of the optimizer, or the model's; no metrics, nor each rank's own seeds."""
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    return [*model.weights, *(list_variables(optimizer) if optimizer is not None else [])]
