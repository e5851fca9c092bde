"""`DistributedOptimizer`: an optimizer of TensorFlow 1 whose gradients are reduced over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator.collectives.ops import to_whole_number
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Adasum, Average, describe_call
from spark_estimator.tensorflow.aggregation import Aggregation
from spark_estimator.tensorflow.compression import Compression
from spark_estimator.tensorflow.gradients import GradientOptions, identify, make_options

_KIND = "DistributedOptimizer"


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc,unused-ignore]
    """Reduces gradients in `compute_gradients` and leaves all else to the optimizer that it wraps."""

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, exchange: GradientOptions, passes: int, average: bool
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._exchange = exchange
        self._local: set[int] = set()
        self._aggregation = Aggregation(passes, average) if passes > 1 else None

    def register_local_var(self, var: Any) -> None:
        """Has a variable belong to this rank only: its gradient is not reduced, but divided by the number of ranks."""
        self._local.add(identify(var))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute the optimizer's gradients, reduced over all ranks. Collective when it runs."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

        def reduce_all(local: list[Any]) -> list[Any]:
            return self._exchange.reduce_gradients(local, variables, self._local)

        if self._aggregation is None:
            results = reduce_all(gradients)
        else:
            results = self._aggregation.add_gradients(gradients, variables, reduce_all)
        return list(zip(results, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply as the optimizer's; with ``backward_passes_per_step`` only after the last of them."""

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        pairs = list(grads_and_vars)
        return apply() if self._aggregation is None else self._aggregation.apply(apply)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's own."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's own."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's own."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer whose gradients are reduced over all ranks before they are applied.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``, or one of Keras, which is passed to
            ``spark_estimator.keras``.
        name: of the new optimizer; None: "Distributed" and the class of the other.
        use_locking: as for ``tf.compat.v1.train.Optimizer``.
        backward_passes_per_step: passes whose gradients are added up before they are reduced and applied.
        average_aggregated_gradients: divide them by that number.
        device_dense, device_sparse, compression, sparse_as_dense, op: as for `DistributedGradientTape`.
        gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients: likewise.

    Raises:
        ValueError: an argument is malformed, or the optimizer is none.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _wrap_keras(**{argument: value for argument, value in locals().items() if argument != "use_locking"})
    passes = to_whole_number(backward_passes_per_step) or 0
    if passes <= 0:
        raise ValueError(
            f"{describe_call(_KIND)}: backward_passes_per_step={backward_passes_per_step!r} must be an integer greater "
            "than 0."
        )
    if op == Adasum and average_aggregated_gradients:
        raise ValueError(f"{describe_call(_KIND)}: average_aggregated_gradients is not supported with op=hvd.Adasum.")
    exchange = make_options(
        _KIND,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    return _DistributedOptimizer(optimizer, name, use_locking, exchange, passes, bool(average_aggregated_gradients))


def _wrap_keras(optimizer: Any, **arguments: Any) -> Any:
    if not hasattr(optimizer, "apply_gradients") and not hasattr(optimizer, "apply"):
        raise ValueError(
            f"{describe_call(_KIND)}: an optimizer of tf.compat.v1.train or of Keras is needed, not {optimizer!r:.100}."
        )
    from spark_estimator.keras import DistributedOptimizer as of_keras

    return of_keras(optimizer, **arguments)
