"""`DistributedGradientTape`: a ``tf.GradientTape`` whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import Average, describe_call
from spark_estimator.tensorflow.compression import Compression
from spark_estimator.tensorflow.gradients import GradientOptions, identify, make_options


class _DistributedMethods:
    """The methods that a distributed tape adds to the class of the original tape."""

    _exchange: GradientOptions
    _local: set[int]

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Compute as ``tf.GradientTape.gradient``, with gradients that are reduced over all ranks. Collective.

        Horovod's fourth argument, `use_generic_names`, is the fifth here, and has no effect: requests are matched by
        their order, and not by the gradients' names.
        """
        if isinstance(unconnected_gradients, bool):  # Horovod's fourth
            unconnected_gradients = tf.UnconnectedGradients.NONE
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = tf.nest.flatten(sources)
        flat_gradients = tf.nest.flatten(gradients)
        return tf.nest.pack_sequence_as(sources, self._exchange.reduce_gradients(flat_gradients, flat, self._local))

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return pairs of source and gradient, as of `gradient`: of local sources, and of the others. Collective."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names=use_generic_names)
        pairs = list(zip(sources, gradients, strict=True))
        local = [pair for pair in pairs if identify(pair[0]) in self._local]
        return local, [pair for pair in pairs if identify(pair[0]) not in self._local]

    def register_local_source(self, source: Any) -> None:
        """Has a variable belong to this rank only: its gradient is not reduced, but divided by the number of ranks,

        unless ``scale_local_gradients=False``: the sum of all ranks' losses over that number is what is minimised.
        """
        self._local.add(identify(source))


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a tape, before or after it recorded, whose ``gradient()`` reduces gradients over all ranks.

    Args:
        gradtape: the tape; it stays as it is.
        device_dense, device_sparse: accepted for Horovod's signature; collectives run in host memory.
        compression: applied to each dense gradient; see `Compression`.
        sparse_as_dense: ``tf.IndexedSlices`` are made dense; False: their slices are gathered.
        op: `Average`, `Sum` or `Adasum`.
        gradient_predivide_factor: f splits an average: 1/f before the sum and f/size after it.
        num_groups: deprecated; use `groups`.
        groups: an integer: that many nearly even groups, each reduced as one; or lists of variables. None: by size.
        process_set: over whose ranks; by default all. A rank outside keeps its gradients.
        scale_local_gradients: see `register_local_source`.

    Raises:
        ValueError: an argument is malformed.
        HorovodInternalError: by ``gradient()``: the ranks disagree, or one is lost; see `allreduce`.
    """
    kind = "DistributedGradientTape"
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"{describe_call(kind)}: a tf.GradientTape is needed, not {gradtape!r:.100}.")
    exchange = make_options(
        kind,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    base = type(gradtape)
    tape_class: Any = type(
        base.__name__, (_DistributedMethods, base), {"__module__": base.__module__, "__doc__": base.__doc__}
    )
    tape = tape_class.__new__(tape_class)
    tape.__dict__.update(gradtape.__dict__)
    tape._exchange = exchange
    tape._local = set()
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Sequence[Any] | Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a tape as `DistributedGradientTape` does, with layers whose variables belong to each rank alone.

    Args:
        local_layers: a Keras layer or several, built; see `register_local_source`.
    """
    tape = DistributedGradientTape(**{name: value for name, value in locals().items() if name != "local_layers"})
    layers: Any = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    for layer in layers:
        if layer is None:
            continue
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must hold Keras layers, not {layer!r}.")
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
