"""The collectives that move rows: allgather, broadcast and alltoall; differentiable.

Names, order of arguments and defaults are Horovod's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from spark_estimator.collectives import context
from spark_estimator.collectives.ops import to_whole_number
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import describe_call
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.differentiable import run
from spark_estimator.tensorflow.failures import to_tensorflow_error
from spark_estimator.tensorflow.nodes import Naming, check_group, check_tensor
from spark_estimator.tensorflow.works import GraphCollective


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Join all ranks' tensors along their first dimension, in rank order, into a new tensor on every rank.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        name, ignore_name_scope, process_set: as in `allreduce`.

    The gradient is this rank's rows of the average of all ranks' gradients.

    Raises:
        ValueError: the tensor has no dimension to join along, or cannot be sent; else as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension; else as in `allreduce`.
    """
    checked = check_tensor(tensor, "allgather", rows=True)
    return run_allgather([checked], "allgather", name, process_set, ignore_name_scope)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather several tensors as one, as `allgather` does: all of them, or none. Returns a list."""
    kind = "grouped_allgather"
    members = [check_tensor(tensor, kind, rows=True) for tensor in check_group(tensors, kind)]
    return run_allgather(members, kind, name, process_set, ignore_name_scope)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copy the root's tensor into a new one on every rank.

    Args:
        tensor: of the same shape and type on all ranks.
        root_rank: whose values are wanted; its number in the job, also for a process set.
        name, ignore_name_scope, process_set: as in `allreduce`.

    The gradient is the average of all ranks' gradients at the root, and zero elsewhere.

    Raises:
        ValueError: `root_rank` is not in the set; else as in `allreduce`.
        HorovodInternalError: as in `allreduce`.
    """
    kind = "broadcast"
    checked = check_tensor(tensor, kind)
    root = check_root(root_rank, process_set, kind)

    naming = Naming(kind, name, ignore_name_scope)
    return run(GraphCollective(works.BROADCAST, process_set, root_rank=root), naming, [checked])[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send some rows of the tensor to each rank, and join what all ranks sent to this one, in rank order.

    Args:
        tensor: [n, *shape], where n may differ from rank to rank and be 0.
        splits: [size] how many rows each rank gets, the first to rank 0; whole numbers, whose sum is n. None: equally
            many.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        The rows that this rank got; with `splits` a pair of them and of [size] how many of them each rank sent (int32).

    The gradient is each row's gradient, sent back to the rank that sent the row.

    Raises:
        ValueError: the splits do not fit the tensor, or without them n is not a multiple of size (in a graph
            TensorFlow's ``InvalidArgumentError``, when it runs); else as in `allreduce`.
        HorovodInternalError: the ranks' shapes differ beyond the first dimension; else as in `allreduce`.
    """
    checked = check_tensor(tensor, "alltoall", rows=True)
    if splits is None:
        shares = tf.zeros([0], tf.int32)  # which a node takes for even ones
    else:
        shares = tf.cast(tf.convert_to_tensor(splits), tf.int32)
        if shares.shape.num_elements() == 0:
            message = f"{describe_call('alltoall')}: splits must have one number per rank, and it is empty."
            raise to_tensorflow_error(ValueError(message))
    naming = Naming("alltoall", name, ignore_name_scope)
    rows, received = run(GraphCollective(works.ALLTOALL, process_set), naming, [checked, shares])
    return rows if splits is None else (rows, received)


def run_allgather(
    tensors: Sequence[Any], kind: str, name: str | None, process_set: ProcessSet | None, ignore_name_scope: bool = False
) -> list[Any]:
    """Join the rows of tensors, in one request; see `allgather`."""
    gather = GraphCollective(works.ALLGATHER, process_set or global_process_set)
    return run(gather, Naming(kind, name, ignore_name_scope), tensors)


def check_root(root_rank: object, process_set: ProcessSet | None, kind: str) -> int:
    """Return a rank whose values all get. Raises ValueError when it is none of the set's."""
    root = to_whole_number(root_rank)
    ranks = context.engine(process_set).ranks
    if root is None or root not in ranks:
        raise to_tensorflow_error(
            ValueError(f"{describe_call(kind)}: root_rank={root_rank!r} must be one of the ranks {list(ranks)}.")
        )
    return root
