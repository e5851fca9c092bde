"""Gradients of several passes, added up on this rank before they are reduced and applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Aggregation:
    """Sums of gradients, in variables, for an optimizer that steps once in `passes` passes, or their `average`."""

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self.average = average
        self._counter: Any = None
        self._sums: list[Any] = []
        self._complete: Any = None

    def add_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]
    ) -> list[Any]:
        """Add a pass's gradients, or None, of these variables. Return the sums, after a step's last pass reduced."""
        present = [number for number, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[number]) for number in present]
        if self._counter is None:
            with tf.init_scope():  # a function's variables are not its own
                self._counter = _make_variable(tf.constant(0, tf.int32), "passes")
                self._sums = [
                    _make_variable(tf.zeros(variables[number].shape, variables[number].dtype.base_dtype), "sum")
                    for number in present
                ]
        with tf.control_dependencies([total.assign_add(new) for total, new in zip(self._sums, dense, strict=True)]):
            counted = self._counter.assign_add(1)
        with tf.control_dependencies([counted]):
            totals = [total.read_value() for total in self._sums]
            self._complete = tf.equal(self._counter.read_value(), self.passes)

        def reduce_sums() -> list[Any]:
            averaged: list[Any] = [None] * len(gradients)
            for number, total in zip(present, totals, strict=True):
                averaged[number] = total / tf.cast(self.passes, total.dtype) if self.average else total
            results = reduce(averaged)
            return [tf.identity(results[number]) for number in present]

        outputs = tf.cond(self._complete, reduce_sums, lambda: [tf.identity(total) for total in totals])
        complete = self._complete
        # Here, and not where they are applied: an optimizer that scales its loss applies finite gradients only.
        with tf.control_dependencies([] if tf.executing_eagerly() else list(outputs)):
            emptied: list[Any] = [
                total.assign(tf.where(complete, tf.zeros_like(value), value))
                for total, value in zip(self._sums, totals, strict=True)
            ]
            emptied.append(self._counter.assign(tf.where(complete, 0, counted)))
        results: list[Any] = [None] * len(gradients)
        with tf.control_dependencies([] if tf.executing_eagerly() else [value.op for value in emptied]):
            for number, output in zip(present, outputs, strict=True):
                results[number] = tf.identity(output)
        return results

    def apply(self, apply: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
        """Call `apply` after a step's last pass, else `otherwise`. Raises RuntimeError: without `add_gradients`."""
        if self._complete is None:
            raise RuntimeError(
                f"apply_gradients() of a DistributedOptimizer with backward_passes_per_step={self.passes} got "
                "gradients that this optimizer did not compute, so it can't count passes. Use minimize() or "
                "model.fit(); or take gradients from hvd.DistributedGradientTape, and make the optimizer without "
                "backward_passes_per_step: each pass is a step then."
            )

        def call_branch(call: Callable[[], Any] | None) -> Any:
            result = None if call is None else call()
            with tf.control_dependencies([] if result is None or tf.executing_eagerly() else [result]):
                return tf.constant(call is apply)

        done_or_not = tf.cond(self._complete, lambda: call_branch(apply), lambda: call_branch(otherwise))
        return None if tf.executing_eagerly() else tf.group(done_or_not)


def _make_variable(initial: Any, name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial, trainable=False, name=f"horovod_{name}")
    return tf.compat.v1.Variable(initial, trainable=False, use_resource=True, name=f"horovod_{name}")
