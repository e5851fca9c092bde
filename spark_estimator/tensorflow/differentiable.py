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
from spark_estimator.tensorflow.questions import rank_of, rank_op, size_of
from spark_estimator.tensorflow.works import GraphCollective

# Names a request of a gradient, by what is added to the name of the collective.
_Again = Callable[[str], Naming]


def run(collective: GraphCollective, naming: Naming, tensors: Sequence[Any]) -> list[Any]:
    """Run a collective, or put it into the graph that is being built; see `perform`. It has a gradient."""
    results: Any
    if not tf.executing_eagerly():
        results = perform(collective, naming, tensors)
        return list(results)

    def again(suffix: str) -> Naming:
        return naming._replace(name=None if naming.name is None else naming.name + suffix)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def performed(*inputs: Any) -> tuple[Any, Any]:
        results = perform(collective, naming, inputs)

        def gradient(*incoming: Any) -> list[Any]:
            return _gradient(collective, again, inputs, results, incoming)

        return results, gradient

    results = performed(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _gradient(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    """Return the gradients of a collective's inputs; None where there is none.

    Args:
        collective: whose.
        again: names the requests.
        inputs, results: of the collective.
        incoming: the gradients of its results; None counts as zero.
    """
    of_inputs: list[Any] = [None] * len(inputs)
    # On every rank the gradients of the same tensors, whichever of them it needs.
    floating = [number for number, result in enumerate(results) if result.dtype.is_floating]
    if not floating:
        return of_inputs
    parts = [_filled(incoming[number], results[number]) for number in floating]
    gradients = _GRADIENTS[collective.op](collective, again, [inputs[number] for number in floating], results, parts)
    for number, gradient in zip(floating, gradients, strict=True):
        of_inputs[number] = gradient
    return of_inputs


def _filled(gradient: Any, result: Any) -> Any:
    """Return an incoming gradient in its result's type: TensorFlow passes zeros of float32 for unused results."""
    return tf.zeros_like(result) if gradient is None else tf.cast(gradient, result.dtype)


def _of_allreduce(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    if collective.reduce_op not in (Average, Sum, Adasum):
        name = collective.reduce_op.name.title()
        return _refused(incoming, f"{again('').kind} with {name} is not differentiable; use Average or Sum.")
    return run(collective, again(".gradient"), incoming)


def _refused(incoming: Sequence[Any], text: str) -> list[Any]:
    """Raise the error of a collective without a gradient; in a graph it is raised when the graph runs.

    TensorFlow builds the gradients of all results of a function that is called under a tape, also of those that
    are not differentiated: their incoming gradients are zero, and so are the outgoing ones.
    """
    if tf.executing_eagerly():
        raise NotImplementedError(text)
    unused = [tf.debugging.Assert(tf.reduce_all(tf.equal(gradient, 0)), [text]) for gradient in incoming]
    with tf.control_dependencies(unused):
        return [tf.zeros_like(gradient) for gradient in incoming]


def _of_reducescatter(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    factor = collective.prescale * collective.postscale
    scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in incoming]
    if collective.reduce_op is Sum:
        scaled = [gradient * size_of(collective.process_set, gradient.dtype) for gradient in scaled]
    return run(GraphCollective(works.ALLGATHER, collective.process_set), again(".gradient"), scaled)


def _of_allgather(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    gather = GraphCollective(works.ALLGATHER, collective.process_set)
    # How many rows each rank gave: known by now to all, but not to the graph.
    lengths = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])[tf.newaxis]
    [rows] = perform(gather, again(".gradient.rows"), [lengths])
    starts = tf.cumsum(rows, exclusive=True)
    rank = rank_of(collective.process_set)
    averages = run(_average(collective.process_set), again(".gradient"), incoming)
    return [
        average[starts[rank, number] : starts[rank, number] + lengths[0, number]]
        for number, average in enumerate(averages)
    ]


def _of_broadcast(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    [average] = run(_average(collective.process_set), again(".gradient"), incoming)
    return [tf.where(tf.equal(rank_op(), collective.root_rank), average, tf.zeros_like(average))]


def _of_alltoall(
    collective: GraphCollective, again: _Again, inputs: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any]
) -> list[Any]:
    back = run(GraphCollective(works.ALLTOALL, collective.process_set), again(".gradient"), [*incoming, results[1]])
    return back[:1]


def _average(process_set: ProcessSet) -> GraphCollective:
    return GraphCollective(works.ALLREDUCE, process_set, ReduceOp.AVERAGE)


_GRADIENTS = {
    works.ALLREDUCE: _of_allreduce,
    works.REDUCESCATTER: _of_reducescatter,
    works.ALLGATHER: _of_allgather,
    works.BROADCAST: _of_broadcast,
    works.ALLTOALL: _of_alltoall,
}


def _of_node(node: Any, *incoming: Any) -> list[Any]:
    """Return the gradient of a node, from its attributes; called by TensorFlow."""
    request = _text(node.get_attr("request"))
    by_node_name = bool(node.get_attr("by_node_name"))
    collective = GraphCollective(
        node.type,
        works.process_set_of_node(int(node.get_attr("process_set_id")), node.get_attr("process_set_ranks").decode()),
    )
    if node.type in (works.ALLREDUCE, works.REDUCESCATTER):
        collective = collective._replace(
            reduce_op=ReduceOp(node.get_attr("reduce_op")),
            prescale=float(tf.make_ndarray(node.get_attr("prescale_factor"))),
            postscale=float(tf.make_ndarray(node.get_attr("postscale_factor"))),
        )
    elif node.type == works.BROADCAST:
        collective = collective._replace(root_rank=int(node.get_attr("root_rank")))

    def again(suffix: str) -> Naming:
        return Naming(request.partition(".")[0], request=request + suffix, by_node_name=by_node_name)

    return _gradient(collective, again, list(node.inputs), list(node.outputs), incoming)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


for _op in _GRADIENTS:
    tf.RegisterGradient(_op)(_of_node)
for _op in (works.AGREE, works.QUESTION, works.BROADCAST_VARIABLES):
    tf.no_gradient(_op)
