"""The collectives that move rows: allgather, broadcast and alltoall; differentiable.

The gradient of a collective is a collective, so that all ranks must compute it, too. Gradients follow Horovod's rules
for TensorFlow: those of allgather and broadcast are sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.ops import whole_number
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import where
from spark_estimator.tensorflow.nodes import Array, checked_tensor, group, perform, spec_of
from spark_estimator.tensorflow.questions import own_rank, rank_op


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Joins all ranks' tensors along their first dimension, in rank order, into a new tensor on every rank.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        name, ignore_name_scope, process_set: as in `allreduce`.

    The gradient is this rank's rows of the sum of all ranks' gradients.

    Raises:
        ValueError: the tensor has no dimension to join along, or cannot be sent; else as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension; else as in `allreduce`.
    """
    given = checked_tensor(tensor, "allgather", rows=True)
    return allgather_of([given], "allgather", name, process_set, ignore_name_scope)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `allgather`, of several tensors as one: all of them are gathered, or none. Returns a list."""
    kind = "grouped_allgather"
    members = [checked_tensor(tensor, kind, rows=True) for tensor in group(tensors, kind)]
    return allgather_of(members, kind, name, process_set, ignore_name_scope)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies the root's tensor into a new one on every rank.

    Args:
        tensor: of the same shape and type on all ranks.
        root_rank: whose values are wanted; its number in the job, also for a process set.
        name, ignore_name_scope, process_set: as in `allreduce`.

    The gradient is the sum of all ranks' gradients at the root, and zero elsewhere.

    Raises:
        ValueError: there is no such rank in the set; else as in `allreduce`.
        HorovodInternalError: as in `allreduce`.
    """
    kind = "broadcast"
    given = checked_tensor(tensor, kind)
    root = checked_root(root_rank, process_set, kind)

    def work(request: str | None, value: Array) -> Sequence[Array]:
        return [arrays.broadcast(value, root, request, process_set=process_set)]

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def copied(inner: Any) -> tuple[Any, Any]:
        def gradient(incoming: Any) -> Any:
            total = _summed([incoming], kind, gradient_name(name), process_set, ignore_name_scope)[0]
            return tf.where(tf.equal(rank_op(), root), total, tf.zeros_like(total))

        [result] = perform(kind, name, work, [inner], [spec_of(inner)], ignore_name_scope=ignore_name_scope)
        return result, gradient

    return copied(given)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends some rows of the tensor to each rank, and joins what all ranks sent to this one, in rank order.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        splits: [size] how many rows each rank gets, the first to rank 0; whole numbers, whose sum is n. None: equally
            many.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        The rows that this rank got; with `splits` a pair of them and of [size] how many of them each rank sent (int32).

    The gradient takes each row's gradient back to where the row came from.

    Raises:
        ValueError: the splits do not fit the tensor, or without them n is not a multiple of size (in a graph
            TensorFlow's ``InvalidArgumentError``, when it runs); else as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension; else as in `allreduce`.
    """
    given = checked_tensor(tensor, "alltoall", rows=True)
    shares = None if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int32)
    rows, received = _alltoall_of(given, shares, name, process_set, ignore_name_scope)
    return rows if splits is None else (rows, received)


def allgather_of(
    tensors: Sequence[Any],
    kind: str,
    name: str | None,
    process_set: ProcessSet | None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Tensors whose rows are joined, in one request; see `allgather`."""

    def work(request: str | None, *values: Array) -> Sequence[Array]:
        return arrays.grouped_allgather(list(values), request, process_set=process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def gathered(*given: Any) -> tuple[Any, Any]:
        def gradient(*incoming: Any) -> list[Any]:
            again = gradient_name(name)
            # How many rows each rank gave: known by now to all, but not to the graph.
            lengths = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in given])[tf.newaxis]
            of_rows = None if again is None else f"{again}.rows"
            [rows] = allgather_of([lengths], kind, of_rows, process_set, ignore_name_scope)
            starts = tf.cumsum(rows, exclusive=True)
            own = own_rank(process_set or global_process_set)
            totals = _summed(incoming, kind, again, process_set, ignore_name_scope)
            return [
                total[starts[own, number] : starts[own, number] + lengths[0, number]]
                for number, total in enumerate(totals)
            ]

        specs = [spec_of(tensor, rows=True) for tensor in given]
        return perform(kind, name, work, given, specs, ignore_name_scope=ignore_name_scope), gradient

    return as_list(gathered(*tensors))


def _alltoall_of(
    tensor: Any, splits: Any, name: str | None, process_set: ProcessSet | None, ignore_name_scope: bool
) -> tuple[Any, Any]:
    kind = "alltoall"
    extra = [] if splits is None else [splits]

    def work(request: str | None, value: Array, *shares: Array) -> Sequence[Array]:
        given = [int(share) for share in shares[0].reshape(-1)] if shares else None
        rows, received = arrays.alltoall(value, given, request, process_set=process_set)
        return [rows, numpy.array(received, numpy.int32)]

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def sent(given: Any) -> tuple[Any, Any]:
        specs = [spec_of(given, rows=True), tf.TensorSpec([None], tf.int32)]
        results = perform(kind, name, work, [given, *extra], specs, ignore_name_scope=ignore_name_scope)

        def gradient(incoming: Any, *_: Any) -> Any:
            again = gradient_name(name)
            return _alltoall_of(incoming, results[1], again, process_set, ignore_name_scope)[0]

        return results, gradient

    rows, received = sent(tensor)
    return rows, received


def _summed(
    tensors: Sequence[Any], kind: str, name: str | None, process_set: ProcessSet | None, ignore_name_scope: bool
) -> list[Any]:
    """Gradients added up over the ranks; the gradient of that is their sum again."""
    from spark_estimator.tensorflow.reducing import Reduction, allreduce_of  # which needs this module

    how = Reduction(ReduceOp.SUM, process_set=process_set or global_process_set)
    return allreduce_of(tensors, kind, name, how, ignore_name_scope)


def checked_root(root_rank: object, process_set: ProcessSet | None, kind: str) -> int:
    """A rank whose values all get. Raises ValueError when it is none of the set's."""
    root = whole_number(root_rank)
    ranks = context.engine(process_set).ranks
    if root is None or root not in ranks:
        raise ValueError(f"{where(kind)}: root_rank={root_rank!r} is not one of the ranks {list(ranks)}.")
    return root


def gradient_name(name: str | None) -> str | None:
    """By which the gradient of a collective of that name meets the others'."""
    return None if name is None else f"{name}.gradient"


def as_list(results: Any) -> list[Any]:
    """What a function with a custom gradient gives: a tensor alone, where there is one."""
    return list(results) if isinstance(results, (list, tuple)) else [results]
