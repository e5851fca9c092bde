"""Queries of a graph on the job when it runs, not when it is built: in an elastic job the answers change; `join`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.nodes import Naming, perform
from spark_estimator.tensorflow.works import GraphCollective


def rank_op(name: str | None = None) -> Any:
    """Return this process's rank, as an int32 tensor."""
    return _answer("rank", name)


def local_rank_op(name: str | None = None) -> Any:
    """Return this process's number on its host, as an int32 tensor."""
    return _answer("local_rank", name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return how many ranks a process set has, as an int32 tensor; by default all.

    Raises:
        ValueError: when it runs: no process set has this id.
    """
    return _answer("size", name, _find_set(process_set_id))


def local_size_op(name: str | None = None) -> Any:
    """Return how many ranks this host has, as an int32 tensor."""
    return _answer("local_size", name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 when this rank is in a process set, else 0, as an int32 tensor. Raises as `size_op` does."""
    return _answer("included", name, _find_set(process_set_id))


def join() -> Any:
    """Announce the end of this rank's data: it gives zeros to the others' allreduces until all ranks have joined.

    Returns:
        The rank that joined last, as an int32 tensor; in a graph when that runs.

    Raises:
        HorovodInternalError: a rank is lost.
    """
    graph = tf.compat.v1.get_default_graph()
    before = graph.get_operations() if not tf.executing_eagerly() and graph.building_function else []
    # A function runs it after its earlier operations with side effects: TensorFlow would otherwise choose the order.
    with tf.control_dependencies([operation for operation in before if operation.op_def.is_stateful]):
        return _answer("join", None)


def ask_size(process_set: ProcessSet, dtype: Any) -> Any:
    """Return how many ranks a process set has, as a tensor of a type that one can divide by."""
    return tf.cast(_answer("size", None, process_set), dtype)


def ask_rank(process_set: ProcessSet) -> Any:
    """Return this process's number in a process set, as an int32 tensor."""
    return _answer("rank in set", None, process_set)


def _find_set(process_set_id: int) -> ProcessSet:
    # A graph may be built before the set is registered, and run in another job.
    return (
        context.find_process_set(process_set_id) if tf.executing_eagerly() else works.make_process_set(process_set_id)
    )


def _answer(question: str, name: str | None, process_set: ProcessSet = global_process_set) -> Any:
    naming = Naming(name or question.replace(" ", "_"), request=f"question.{question}", by_node_name=True)
    [answer] = perform(GraphCollective(works.QUESTION, process_set, text=question), naming, [])
    return answer
