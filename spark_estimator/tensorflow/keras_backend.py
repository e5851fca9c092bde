"""What ``spark_estimator.keras`` does on Keras' TensorFlow backend; ``keras.backends`` loads this module by its name.

Gradients of a step are reduced as by the tape of ``spark_estimator.tensorflow``.

TensorFlow runs a graph's operations in another order on each rank. An operation that waits for other ranks is therefore
a node that holds none of TensorFlow's threads while it waits. All other nodes of a step run after the ranks' agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.process_set import global_process_set
from spark_estimator.keras.exchange import KerasExchange
from spark_estimator.keras.variables import find_keras_session
from spark_estimator.tensorflow import gathering, reducing, works
from spark_estimator.tensorflow.aggregation import Aggregation as Aggregation
from spark_estimator.tensorflow.elastic import find_failure as find_failure
from spark_estimator.tensorflow.gathering import run_allgather
from spark_estimator.tensorflow.nodes import Naming, perform
from spark_estimator.tensorflow.questions import ask_size
from spark_estimator.tensorflow.reducing import TensorReduction, run_allreduce
from spark_estimator.tensorflow.starting_state import broadcast_global_variables
from spark_estimator.tensorflow.works import GraphCollective

_KIND = "DistributedOptimizer"


def reduce_gradients(
    exchange: KerasExchange, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]
) -> list[Any]:
    """See ``backends.reduce_gradients``. Raises ValueError: XLA compiles the step, and cannot call the engine."""
    check_no_xla()
    if exchange.sparse_as_dense:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    dense = [index for index, gradient in enumerate(gradients) if not isinstance(gradient, tf.IndexedSlices)]
    name = exchange.digest(everything, variables)
    over = exchange.process_set or global_process_set
    how = TensorReduction(*exchange.scale_op(), over)
    result: list[Any] = list(gradients)
    with tf.control_dependencies(_agree(exchange, variables, everything)):
        weight = factor(exchange) if exchange.weight.is_used and exchange.accumulates == 1 else None
        sent, contexts = exchange.compress([gradients[index] for index in dense])
        parts = exchange.split_parts([variables[index] for index in dense])
        received: list[Any] = list(sent)
        for part, request in zip(parts, exchange.number_names(name, parts), strict=True):
            weighed = [_weigh(sent[number], weight) for number in part]
            residues = ",".join(exchange.make_residue_keys([variables[dense[number]] for number in part]))
            reduced_part = run_allreduce(weighed, *_name_request(request), how._replace(residues=residues), True)
            for number, tensor in zip(part, reduced_part, strict=True):
                received[number] = tensor
        for index, tensor in zip(dense, exchange.decompress(received, contexts), strict=True):
            result[index] = tensor
        for index, slices in enumerate(gradients):
            if isinstance(slices, tf.IndexedSlices) and not exchange.sparse_as_dense:
                weighed = [_weigh(slices.values, weight), slices.indices]
                values, indices = run_allgather(
                    weighed, *_name_request(f"{name}.rows.{index}"), exchange.process_set, True
                )
                if exchange.op is ReduceOp.AVERAGE:
                    values = values / ask_size(over, values.dtype)
                result[index] = tf.IndexedSlices(values, indices, slices.dense_shape)
    return result


def _agree(exchange: KerasExchange, variables: Sequence[Any], everything: Sequence[Any]) -> list[Any]:
    """Has the ranks agree before what depends on the result, now or as a part of the graph that is being made."""
    if tf.executing_eagerly():
        exchange.check_variables(everything, variables)
        return []
    text = works.make_agreement(*exchange.make_statement(everything, variables))
    agree = GraphCollective(works.AGREE, exchange.process_set or global_process_set, text=text)
    return list(perform(agree, Naming("keras.DistributedOptimizer.agreement"), []))


def _name_request(request: str) -> tuple[str, str | None]:
    """Return kind and name of a request: in a graph several optimizers of like variables may have one in flight."""
    if tf.executing_eagerly():
        return _KIND, request
    return f"{_KIND}.{request}", None  # and its function's name and its number among those of this kind


def _weigh(tensor: Any, weight: Any) -> Any:
    return tensor if weight is None else tensor * tf.cast(weight, tensor.dtype)


def are_all_true(exchange: KerasExchange, flag: Any) -> Any:
    """Return whether a truth value holds on every rank, as a tensor."""
    check_no_xla()
    smallest = TensorReduction(ReduceOp.MIN, process_set=exchange.process_set or global_process_set)
    [agreed] = run_allreduce([tf.cast(flag, tf.uint8)], "keras.DistributedOptimizer.finite", None, smallest)
    return tf.cast(agreed, tf.bool)


def factor(exchange: KerasExchange) -> Any:
    """Return ``exchange.factor`` as it is when the step runs."""
    weight = exchange.weight
    if weight.follower is None:
        with tf.init_scope():  # a function's variables are not its own
            weight.follower = tf.Variable(weight.value, trainable=False, dtype=tf.float32, name="horovod_factor")
    return weight.follower.read_value()


def only_when(condition: Any, run: Any, values: Sequence[Any]) -> list[Any]:
    """Return ``run()``: on this backend Keras requests an update only if the condition is true."""
    return list(run())


def keep_unconverted(function: Any) -> Any:
    """Return the function unchanged: in a user's ``tf.function`` AutoGraph would convert it."""
    return tf.autograph.experimental.do_not_convert(function)


def run_collective(collective: str, value: Any, **arguments: Any) -> Any:
    """Call the TensorFlow binding's collective; its result, which Keras' session computes in a graph of Keras 2."""
    binding = gathering if collective in ("allgather", "broadcast") else reducing
    call: Callable[..., Any] = getattr(binding, collective)
    convert = tf.convert_to_tensor
    converted = [convert(item) for item in value] if collective == "grouped_allreduce" else convert(value)
    result = call(converted, **arguments)
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return result
    return find_keras_session().run(result)


def broadcast_in_graph(root_rank: int) -> Any:
    """Copy the root's global variables into all others', in Keras' session of a graph of TensorFlow 1."""
    return find_keras_session().run(broadcast_global_variables(root_rank))


def check_no_xla() -> None:
    """Raise ValueError if XLA compiles the step: its program cannot call functions outside of it."""
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "DistributedOptimizer: XLA compiles this training step (jit_compile=True), and compiled code cannot call "
            "the engine. Use model.compile(..., jit_compile=False)."
        )
