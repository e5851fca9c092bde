"""Gradients on Keras' TensorFlow backend: one operation of a step calls the engine with all gradients.

One operation, as TensorFlow would run several in another order on each rank, each waiting for its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import tensorflow as tf

from spark_estimator.keras.exchange import Exchange


def reduced(
    exchange: Exchange, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]
) -> list[Any]:
    """See ``Exchange.reduced``.

    Raises:
        ValueError: the step is being compiled by XLA, which cannot call the engine.
    """
    check_no_xla()
    if exchange.sparse_as_dense:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    dense = [place for place, gradient in enumerate(gradients) if not isinstance(gradient, tf.IndexedSlices)]
    rows = [place for place in range(len(gradients)) if place not in dense]
    sent, contexts = exchange.compressed([gradients[place] for place in dense])
    owners = [variables[place] for place in dense]

    def on_host(*parts: numpy.ndarray[Any, Any]) -> list[numpy.ndarray[Any, Any]]:
        # parts that are sparse come after the dense ones, each as values and indices
        results = exchange.on_host(parts[: len(dense)], owners, variables, everything)
        for number, place in enumerate(rows):
            values, indices = parts[len(dense) + 2 * number :][:2]
            results += exchange.rows_on_host(values, indices, place)
        return results

    inputs = [*sent]
    for place in rows:
        inputs += [gradients[place].values, gradients[place].indices]
    outputs = tf.numpy_function(on_host, inputs, [tensor.dtype for tensor in inputs])
    if not isinstance(outputs, (list, tuple)):  # one tensor comes back without its list
        outputs = [outputs]
    result: list[Any] = list(gradients)
    for tensor, like in zip(outputs, sent, strict=False):
        tensor.set_shape(like.shape)
    for place, tensor in zip(dense, exchange.decompressed(outputs[: len(dense)], contexts), strict=True):
        result[place] = tensor
    for number, place in enumerate(rows):
        values, indices = outputs[len(dense) + 2 * number :][:2]
        values.set_shape([None, *gradients[place].values.shape[1:]])
        indices.set_shape([None])
        result[place] = tf.IndexedSlices(values, indices, gradients[place].dense_shape)
    return result


def all_true(exchange: Exchange, flag: Any) -> Any:
    """Whether a truth value holds on every rank, as a tensor."""
    check_no_xla()
    agreed = tf.numpy_function(lambda value: numpy.bool_(exchange.all_true(value)), [flag], tf.bool)
    agreed.set_shape(flag.shape)
    return agreed


def factor(exchange: Exchange) -> Any:
    """``exchange.factor`` as it is when the step runs."""
    found = tf.numpy_function(lambda: numpy.float32(exchange.factor), [], tf.float32)
    found.set_shape(())
    return found


def only_when(condition: Any, run: Any, values: Sequence[Any]) -> list[Any]:
    """``run()``: Keras calls for an update on this backend where the condition holds, and nowhere else."""
    return list(run())


def unconverted(function: Any) -> Any:
    """The function as it is written: in a user's ``tf.function`` AutoGraph would write it anew."""
    return tf.autograph.experimental.do_not_convert(function)


def check_no_xla() -> None:
    """Raises ValueError where XLA compiles the step: it has no way to call what is outside of its program."""
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "DistributedOptimizer: XLA compiles this training step (jit_compile=True), and cannot call the ranks' "
            "exchange from inside of it: use model.compile(..., jit_compile=False)."
        )
