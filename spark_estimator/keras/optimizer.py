"""``DistributedOptimizer`` for either Keras: the user's optimizer itself, with another class, which averages.

Nothing is rebuilt: the optimizer keeps its variables, its learning-rate schedule and its identity. Its new class has
the name and the module of the old one, so that a saved model holds no trace of this package and loads without it.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.ops import to_whole_number
from spark_estimator.collectives.process_set import ProcessSet, check_registered, global_process_set
from spark_estimator.collectives.reductions import describe_op
from spark_estimator.keras import optimizers, wrapping
from spark_estimator.keras.compression import checked_compression
from spark_estimator.keras.exchange import KerasExchange
from spark_estimator.keras.importing import backend, is_keras_2


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Has a Keras optimizer average gradients over all ranks before it uses them. All ranks call it.

    It may be called before ``hvd.init()``, which the first step needs.

    Works on Keras' torch, TensorFlow and JAX backends, with ``model.fit``, ``train_on_batch`` and custom loops that
    call ``optimizer.apply``. With a `LossScaleOptimizer`, passed or made by ``model.compile`` (``mixed_float16``), the
    ranks agree whether a step's gradients are finite. With Keras' ``gradient_accumulation_steps`` the exchange takes
    place once every that many passes.

    An optimizer of Keras 2 (``tf_keras``), also of its ``optimizers.legacy``, exchanges in ``fit`` and ``minimize``.
    A custom loop that calls ``apply_gradients`` takes its gradients from `DistributedGradientTape`, as in Horovod.

    Args:
        optimizer: built or not; it is changed in place. Wrapping once more is refused.
        name: for requests and errors; by default the optimizer's.
        device_dense, device_sparse: without effect.
        compression: ``hvd.Compression.none``, ``fp16`` or ``bf16``, or an object with their two functions; None: the
            value of SPARK_ESTIMATOR_COMPRESSION.
        sparse_as_dense: gradients of some rows (TensorFlow's ``IndexedSlices``) are sent as whole ones; without it the
            rows are gathered. Other backends send them whole.
        gradient_predivide_factor: f: an average is taken as 1/f before and f/size after the sum.
        op: ``hvd.Average`` or ``hvd.Sum``.
        backward_passes_per_step: passes whose gradients are collected before the ranks exchange them and step. In
            Keras 3 this is Keras' gradient accumulation: give it before the optimizer is built, and not together with
            that argument.
        average_aggregated_gradients: the passes' mean is taken; without it their sum.
        num_groups: deprecated, as ``groups=num_groups``.
        groups: which gradients are sent together: a number of nearly equal groups, or lists of variables; None: all.
        process_set: over whose ranks; a rank outside it steps by its own gradients.
        scale_local_gradients: gradients of local variables are divided by the number of ranks; see
            `PartialDistributedOptimizer`.

    Returns:
        The same optimizer.

    Raises:
        ValueError, TypeError: an argument cannot be used; nothing was changed.
    """
    _check_optimizer(optimizer)
    if num_groups:
        if groups is None and (to_whole_number(num_groups) or -1) < 0:
            raise ValueError(f"num_groups={num_groups!r} must be 0, or the number of groups.")
        warnings.warn("num_groups= is deprecated; use groups=.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    operation = _check_op(op)
    _check_predivide(gradient_predivide_factor, operation)
    passes = to_whole_number(backward_passes_per_step) or 0
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r} must be an integer greater than 0.")
    innermost = optimizers.find_innermost(optimizer)
    keras_2 = is_keras_2(optimizer)
    own_passes = getattr(innermost, "gradient_accumulation_steps", None) or 1
    if passes > 1 and not keras_2:
        _check_can_accumulate(innermost, own_passes)
    exchange = KerasExchange(
        name or optimizers.find_name(optimizer),
        operation,
        checked_compression(compression),
        float(gradient_predivide_factor),
        _check_groups(groups),
        bool(sparse_as_dense),
        _check_process_set(process_set),
        scale_local=bool(scale_local_gradients),
        accumulates=max(passes, own_passes),
        sums_passes=passes > 1 and not average_aggregated_gradients,
        backend=backend(optimizer),
    )
    if passes > 1 and not keras_2:
        innermost.gradient_accumulation_steps = passes
    wrapping.wrap(optimizer, exchange)
    return optimizer


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap as `DistributedOptimizer` does, but gradients of some layers' variables stay on this rank.

    Args:
        local_layers: a layer, or a list of layers, which are built; the rest as for `DistributedOptimizer`.

    Raises:
        ValueError: something is no layer, or has not been built; the rest as for `DistributedOptimizer`.
    """
    arguments = {name: value for name, value in locals().items() if name != "local_layers"}
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_variables") or not hasattr(layer, "built"):
            raise ValueError(f"local_layers must hold Keras layers, not {layer!r}.")
        if not layer.built:
            raise ValueError(f"local_layers: layer {layer.name!r} has no variables yet; build it first.")
    wrapped = DistributedOptimizer(**arguments)
    for layer in layers:
        for variable in layer.trainable_variables:
            wrapped.register_local_var(variable)
    return wrapped


def _check_optimizer(optimizer: Any) -> None:
    if not optimizers.is_optimizer(optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        description = (
            f"the text {optimizer!r}: make it with keras.optimizers.get" if isinstance(optimizer, str) else f"a {kind}"
        )
        raise TypeError(f"DistributedOptimizer takes an optimizer of Keras 3 or Keras 2, not {description}.")
    if wrapping.find_exchange(optimizer) is not None:
        raise ValueError(
            f"DistributedOptimizer: optimizer {optimizers.find_name(optimizer)!r} is already a DistributedOptimizer. "
            "Wrap it only once; hvd.load_model has already wrapped it."
        )


def _check_can_accumulate(innermost: Any, own_passes: int) -> None:
    if own_passes > 1:
        raise ValueError(
            f"The optimizer has gradient_accumulation_steps={own_passes}; backward_passes_per_step would accumulate "
            "again. Pass only one of the two."
        )
    if innermost.built:
        raise ValueError(
            f"backward_passes_per_step: optimizer {innermost.name!r} is already built, without variables to "
            "accumulate gradients. Wrap it before it is built, or create it with gradient_accumulation_steps=."
        )


def _check_op(op: int) -> ReduceOp:
    try:
        if not isinstance(op, bool) and ReduceOp(op) in (ReduceOp.AVERAGE, ReduceOp.SUM):
            return ReduceOp(op)
    except ValueError:
        pass
    raise ValueError(f"DistributedOptimizer: op={describe_op(op)} must be hvd.Average or hvd.Sum in Keras.")


def _check_predivide(factor: Any, op: ReduceOp) -> None:
    if not isinstance(factor, numbers.Real) or not 0 < float(factor) < math.inf:
        raise ValueError(f"gradient_predivide_factor={factor!r} must be a number greater than 0.")
    if factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise ValueError(f"gradient_predivide_factor={factor} requires op=hvd.Average.")


def _check_groups(groups: Any) -> int | list[list[Any]] | None:
    number = None if isinstance(groups, bool) else to_whole_number(groups)
    if groups is None or (number or 0) > 0:
        return number
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups={groups!r} must be an integer greater than 0, or a list of lists of variables.")
    ids = [id(variable) for group in groups for variable in group]
    if len(set(ids)) != len(ids):
        raise ValueError("groups has a variable twice; each may be in one group only.")
    return [list(group) for group in groups]


def _check_process_set(process_set: Any) -> ProcessSet | None:
    if process_set is None or process_set is global_process_set:
        return None
    return check_registered(process_set)
