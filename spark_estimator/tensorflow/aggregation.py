"""Gradients of several passes, added up on this rank before they are reduced and applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Aggregation:
    """Sums of gradients, in variables, for an optimizer that steps once in `passes` passes.

    Args:
        passes: how many make a step.
        average: whether their sum is divided by that.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self.average = average
        self._counter: Any = None
        self._sums: list[Any] = []
        self._complete: Any = None

    def gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]
    ) -> list[Any]:
        """Adds a pass's gradients. After the last pass of a step gives what `reduce` makes of the sums, else the sums.

        Args:
            gradients: of this pass; None where there is none.
            variables: whose they are.
            reduce: reduces gradients over the ranks, in a branch that only the last pass takes.
        """
        present = [number for number, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[number]) for number in present]
        if self._counter is None:
            with tf.init_scope():  # a function's variables are not its own
                self._counter = _variable(tf.constant(0, tf.int32), "passes")
                self._sums = [
                    _variable(tf.zeros(variables[number].shape, variables[number].dtype.base_dtype), "sum")
                    for number in present
                ]
        with tf.control_dependencies([total.assign_add(new) for total, new in zip(self._sums, dense, strict=True)]):
            counted = self._counter.assign_add(1)
        with tf.control_dependencies([counted]):
            totals = [total.read_value() for total in self._sums]
            self._complete = tf.equal(self._counter.read_value(), self.passes)

        def reduced() -> list[Any]:
            averaged: list[Any] = [None] * len(gradients)
            for number, total in zip(present, totals, strict=True):
                averaged[number] = total / tf.cast(self.passes, total.dtype) if self.average else total
            results = reduce(averaged)
            return [tf.identity(results[number]) for number in present]

        outputs = tf.cond(self._complete, reduced, lambda: [tf.identity(total) for total in totals])
        results: list[Any] = [None] * len(gradients)
        for number, output in zip(present, outputs, strict=True):
            results[number] = output
        return results

    def apply(self, apply: Callable[[], Any]) -> Any:
        """Calls `apply` after the last pass of a step, and begins the next one."""

        def step() -> Any:
            # What is applied was computed from the sums: they are emptied after it.
            applied = apply()
            with tf.control_dependencies([] if applied is None or tf.executing_eagerly() else [applied]):
                emptied = [variable.assign(tf.zeros_like(variable)) for variable in self._sums]
                emptied.append(self._counter.assign(0))
            if tf.executing_eagerly():
                return tf.constant(True)
            with tf.control_dependencies([value.op if hasattr(value, "op") else value for value in emptied]):
                return tf.constant(True)

        done = tf.cond(self._complete, step, lambda: tf.constant(False))
        return None if tf.executing_eagerly() else tf.group(done)


def _variable(initial: Any, name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial, trainable=False, name=f"horovod_{name}")
    return tf.compat.v1.Variable(initial, trainable=False, use_resource=True, name=f"horovod_{name}")
