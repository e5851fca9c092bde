"""Collectives with their gradients, by Horovod's definitions: eagerly, and in graphs, also in those that are loaded.

The gradient of a collective is a collective, so that all ranks must compute it, too. In a graph it is found by the
node's op and computed from the node's attributes; TensorFlow's own custom gradients would be a number of this process.

================  =======================================================================================
collective        gradient
================  =======================================================================================
allreduce         the same allreduce of the incoming gradients: op, factors and process set
allgather         this rank's rows of the average over the ranks
broadcast         the average over the ranks at the root, zero elsewhere
alltoall          every row's gradient, sent back to the row's rank
reducescatter     all ranks' gradients joined, times the factors; of a Sum also times the number of ranks
================  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.reductions import Adasum, Average, Sum
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.nodes import Naming, perform
from spark_estimator.tensorflow.questions import ask_rank, ask_size, rank_op
from spark_estimator.tensorflow.works import GraphCollective

# Names a request of a gradient, by what is added to the name of the collective.
_Again = Callable[[str], Naming]


def run(collective: GraphCollective, naming: Naming, tensors: Sequence[Any]) -> list[Any]:
    """Run a collective, or put it into the graph that is being built; see `perform`. It has a gradient."""
    results: Any
    if not tf.executing_eagerly():
        results = perform(collective, naming, tensors)
        return list(results)

    def name_again(suffix: str) -> Naming:
        return naming._replace(name=None if naming.name is None else naming.name + suffix)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def perform_with_gradient(*inputs: Any) -> tuple[Any, Any]:
        results = perform(collective, naming, inputs)

        def compute_gradient(*incoming: Any) -> list[Any]:
            return _compute_gradient(collective, name_again, inputs, results, incoming)

        return results, compute_gradient

    results = perform_with_gradient(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _compute_gradient(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    """Return the gradients of a collective's inputs, None where there is none; incoming None counts as zero."""
    of_inputs: list[Any] = [None] * len(inputs)
    # On every rank the gradients of the same tensors, whichever of them it needs.
    floating = [number for number, result in enumerate(results) if result.dtype.is_floating]
    if not floating:
        return of_inputs
    floating_gradients = [_fill(incoming[number], results[number]) for number in floating]
    gradients = _GRADIENTS[collective.op](
        collective, again, [inputs[number] for number in floating], results, floating_gradients
    )
    for number, gradient in zip(floating, gradients, strict=True):
        of_inputs[number] = gradient
    return of_inputs


def _fill(gradient: Any, result: Any) -> Any:
    """Return an incoming gradient in its result's type: TensorFlow passes zeros of float32 for unused results."""
    return tf.zeros_like(result) if gradient is None else tf.cast(gradient, result.dtype)


def _differentiate_allreduce(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    if collective.reduce_op not in (Average, Sum, Adasum):
        name = collective.reduce_op.name.title()
        return _refuse(incoming, f"{again('').kind} with {name} is not differentiable; use Average or Sum.")
    return run(collective, again(".gradient"), incoming)


def _refuse(incoming: Sequence[Any], text: str) -> list[Any]:
    """Raise the error of a collective without a gradient; in a graph when that runs, unless `incoming` is zero.

    TensorFlow builds the gradients of all results of a called function, also of those that are not differentiated.
    """
    if tf.executing_eagerly():
        raise NotImplementedError(text)
    unused = [tf.debugging.Assert(tf.reduce_all(tf.equal(gradient, 0)), [text]) for gradient in incoming]
    with tf.control_dependencies(unused):
        return [tf.zeros_like(gradient) for gradient in incoming]


def _differentiate_reducescatter(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    factor = collective.prescale * collective.postscale
    scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in incoming]
    if collective.reduce_op is Sum:
        scaled = [gradient * ask_size(collective.process_set, gradient.dtype) for gradient in scaled]
    return run(GraphCollective(works.ALLGATHER, collective.process_set), again(".gradient"), scaled)


def _differentiate_allgather(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    gather = GraphCollective(works.ALLGATHER, collective.process_set)
    # How many rows each rank gave: known by now to all, but not to the graph.
    lengths = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])[tf.newaxis]
    [rows] = perform(gather, again(".gradient.rows"), [lengths])
    starts = tf.cumsum(rows, exclusive=True)
    rank = ask_rank(collective.process_set)
    averages = run(_make_average(collective.process_set), again(".gradient"), incoming)
    return [
        average[starts[rank, number] : starts[rank, number] + lengths[0, number]]
        for number, average in enumerate(averages)
    ]


def _differentiate_broadcast(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    [average] = run(_make_average(collective.process_set), again(".gradient"), incoming)
    return [tf.where(tf.equal(rank_op(), collective.root_rank), average, tf.zeros_like(average))]


def _differentiate_alltoall(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    back = run(GraphCollective(works.ALLTOALL, collective.process_set), again(".gradient"), [*incoming, results[1]])
    return back[:1]


def _make_average(process_set: ProcessSet) -> GraphCollective:
    return GraphCollective(works.ALLREDUCE, process_set, ReduceOp.AVERAGE)


_GRADIENTS = {
    works.ALLREDUCE: _differentiate_allreduce,
    works.REDUCESCATTER: _differentiate_reducescatter,
    works.ALLGATHER: _differentiate_allgather,
    works.BROADCAST: _differentiate_broadcast,
    works.ALLTOALL: _differentiate_alltoall,
}


def _differentiate_node(node: Any, *incoming: Any) -> list[Any]:
    """Return the gradient of a node, from its attributes; called by TensorFlow."""
    request = tf.compat.as_str(node.get_attr("request"))
    by_node_name = bool(node.get_attr("by_node_name"))
    collective = GraphCollective(
        node.type,
        works.make_process_set(int(node.get_attr("process_set_id")), node.get_attr("process_set_ranks").decode()),
    )
    if node.type in (works.ALLREDUCE, works.REDUCESCATTER):
        collective = collective._replace(
            reduce_op=ReduceOp(node.get_attr("reduce_op")),
            prescale=float(tf.make_ndarray(node.get_attr("prescale_factor"))),
            postscale=float(tf.make_ndarray(node.get_attr("postscale_factor"))),
        )
    elif node.type == works.BROADCAST:
        collective = collective._replace(root_rank=int(node.get_attr("root_rank")))

    def name_again(suffix: str) -> Naming:
        return Naming(request.partition(".")[0], request=request + suffix, by_node_name=by_node_name)

    return _compute_gradient(collective, name_again, list(node.inputs), list(node.outputs), incoming)


for _op in _GRADIENTS:
    tf.RegisterGradient(_op)(_differentiate_node)
for _op in (works.AGREE, works.QUESTION, works.BROADCAST_VARIABLES):
    tf.no_gradient(_op)
