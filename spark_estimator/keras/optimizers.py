"""The binding's view of an optimizer of either Keras: its variables, its learning rate, the optimizer inside of it.

Keras 2 has two kinds: ``tf_keras.optimizers.Adam`` and ``tf_keras.optimizers.legacy.Adam``, which makes its variables
at its first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_estimator.keras.importing import is_keras_2, keras_of
from spark_estimator.keras.variables import assign, copy_value


def is_optimizer(item: object) -> bool:
    """Return whether it is an optimizer of Keras 3, or of Keras 2, also a legacy one."""
    optimizers = keras_of(item).optimizers
    kinds = [optimizers.Optimizer]
    if is_keras_2(item):
        kinds.append(optimizers.legacy.Optimizer)
    return isinstance(item, tuple(kinds))


def find_name(optimizer: Any) -> str:
    """Return its name; Keras 2's legacy optimizers have no public one, and its `LossScaleOptimizer` none."""
    if is_keras_2(optimizer):
        optimizer = find_innermost(optimizer)
    return str(optimizer._name if is_legacy(optimizer) else optimizer.name)


def is_legacy(optimizer: object) -> bool:
    """Return whether it is one of Keras 2's ``optimizers.legacy``."""
    return is_keras_2(optimizer) and isinstance(optimizer, keras_of(optimizer).optimizers.legacy.Optimizer)


def is_scaler(optimizer: object) -> bool:
    """Return whether it scales the loss for another optimizer, for ``mixed_float16``."""
    if is_keras_2(optimizer):
        return hasattr(type(optimizer), "inner_optimizer")
    kind = getattr(keras_of(optimizer).optimizers, "LossScaleOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)


def find_innermost(optimizer: Any) -> Any:
    """Return the optimizer with the learning rate and the momentum: inside a `LossScaleOptimizer`, or itself."""
    while is_scaler(optimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def list_variables(optimizer: Any) -> list[Any]:
    """Return its variables; Keras 2's legacy optimizers have a method there."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def is_built(optimizer: Any) -> bool:
    """Return whether it has its variables."""
    if not is_keras_2(optimizer):
        return bool(optimizer.built)
    inner = find_innermost(optimizer)
    return bool(inner.variables()) if is_legacy(inner) else bool(getattr(inner, "_built", False))


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make its variables, which is done once."""
    if is_legacy(optimizer):
        find_innermost(optimizer)._create_all_weights(list(variables))
    elif is_keras_2(optimizer):
        find_innermost(optimizer).build(list(variables))
    elif not optimizer.built:
        optimizer.build(variables)


def finalize(optimizer: Any, variables: Sequence[Any]) -> None:
    """Give a model's trainable variables their averages (``use_ema=True``), as Keras does at the end of ``fit``."""
    if not is_legacy(optimizer):
        find_innermost(optimizer).finalize_variable_values(variables)


def read_iterations(optimizer: Any) -> int:
    """Return its steps so far; passes that are gathered count, too."""
    inner = find_innermost(optimizer)
    return int(copy_value(inner.iterations if is_keras_2(inner) else inner._iterations))


def find_schedule(optimizer: Any) -> Any:
    """Return its `LearningRateSchedule`, by which its rate cannot be set; None where it has a number."""
    inner = find_innermost(optimizer)
    rate = inner.learning_rate if is_legacy(inner) else getattr(inner, "_learning_rate", None)
    return rate if isinstance(rate, keras_of(inner).optimizers.schedules.LearningRateSchedule) else None


def read_rate(optimizer: Any) -> float:
    """Return its learning rate."""
    rate = find_innermost(optimizer).learning_rate
    if is_keras_2(optimizer):
        return float(keras_of(optimizer).backend.get_value(rate))
    return float(keras_of(optimizer).ops.convert_to_numpy(rate))


def set_rate(optimizer: Any, rate: float) -> None:
    """Set its learning rate."""
    inner = find_innermost(optimizer)
    if is_keras_2(inner):
        assign(inner.learning_rate, rate)
    else:
        inner.learning_rate = rate


def read_momentum(optimizer: Any) -> float:
    """Return its momentum; 0 without."""
    momentum: Any = getattr(find_innermost(optimizer), "momentum", None)
    if is_legacy(optimizer) and momentum is not None:
        momentum = keras_of(optimizer).backend.get_value(momentum)
    return float(momentum) if isinstance(momentum, (int, float)) or hasattr(momentum, "dtype") else 0.0


def list_velocities(optimizer: Any) -> list[Any]:
    """Return the variables in which momentum gathers past steps."""
    inner = find_innermost(optimizer)
    if is_legacy(inner):
        return [variable for variable in inner.variables() if "momentum" in str(variable.name).rpartition("/")[2]]
    return list(getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or [])
