"""What a graph asks about the job when it runs, not when it is built: in an elastic job the answers change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import tensorflow as tf

from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet


def rank_op(name: str | None = None) -> Any:
    """This process's rank, as an int32 tensor."""
    return _answer(context.rank, name)


def local_rank_op(name: str | None = None) -> Any:
    """This process's number on its host, as an int32 tensor."""
    return _answer(context.local_rank, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """How many ranks a process set has, as an int32 tensor; by default all.

    Raises:
        ValueError: when it runs: there is no such set.
    """
    return _answer(lambda: len(_ranks(process_set_id)), name)


def local_size_op(name: str | None = None) -> Any:
    """How many ranks this host has, as an int32 tensor."""
    return _answer(context.local_size, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 when this rank is in a process set, else 0, as an int32 tensor. Raises as `size_op` does."""
    return _answer(lambda: int(context.rank() in _ranks(process_set_id)), name)


def size_of(process_set: ProcessSet, dtype: Any) -> Any:
    """How many ranks a process set has, as a tensor of a type that one can divide by."""
    return tf.cast(_answer(lambda: context.engine(process_set).size, None), dtype)


def own_rank(process_set: ProcessSet) -> Any:
    """This process's number in a process set, as an int32 tensor."""
    return _answer(lambda: context.engine(process_set).rank, None)


def _ranks(process_set_id: int) -> list[int]:
    sets = context.get_process_set_ids_and_ranks()
    if process_set_id not in sets:
        raise ValueError(f"process_set_id={process_set_id!r} is none of {sorted(sets)}.")
    return sets[process_set_id]


def _answer(question: Callable[[], int], name: str | None) -> Any:
    if tf.executing_eagerly():
        return tf.constant(question(), tf.int32)
    # It waits for nobody, so that it may run on a thread of TensorFlow's.
    answer = tf.numpy_function(lambda: numpy.int32(question()), [], tf.int32, name=name)
    answer.set_shape([])
    return answer
