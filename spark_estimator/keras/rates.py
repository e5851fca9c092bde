"""Multiplies the learning rate of an optimizer, of either Keras, with the number of ranks.

A number is assigned. A schedule, or a function without arguments, is replaced by one that returns the multiplied
values. Its configuration stays the user's, so that a saved model loads where this package is not installed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

from spark_estimator.keras.importing import backend, is_keras_2
from spark_estimator.keras.optimizers import innermost, is_legacy, rate_of, schedule_of, set_rate, variables_of

_PLAIN = "_spark_estimator_plain"


def rescale_rate(optimizer: Any, old: int, new: int) -> None:
    """Change a learning rate that was multiplied by `old` to one that is multiplied by `new`.

    A step that is compiled already keeps the factor of a schedule.

    Args:
        optimizer: is built.
    """
    inner, rate = innermost(optimizer), _rate(optimizer)
    if hasattr(rate, "assign"):
        if old != new:
            set_rate(optimizer, rate_of(optimizer) * new / old)
        return
    plain = getattr(rate, _PLAIN, None)
    made = _multiplied(rate, new / old, optimizer) if plain is None else _multiplied(plain, new, optimizer)
    if is_legacy(inner):
        inner._set_hyper("learning_rate", made)
        return
    inner.learning_rate = made
    if is_keras_2(inner):  # which computes it at the beginning of a step otherwise
        inner._compute_current_learning_rate()


@contextlib.contextmanager
def use_rate_of_one_process(optimizer: Any, ranks: int) -> Iterator[None]:
    """Divide a rate that is a number by the number of ranks while this context lasts, for a file that others read."""
    rate = rate_of(optimizer) if hasattr(_rate(optimizer), "assign") else None
    if rate is None or ranks == 1:
        yield
        return
    set_rate(optimizer, rate / ranks)
    try:
        yield
    finally:
        set_rate(optimizer, rate)


def variables_with_rate(optimizer: Any) -> list[Any]:
    """Return the optimizer's variables and, last, its learning rate, which is none of them in Keras 2."""
    variables = variables_of(optimizer)
    if is_keras_2(optimizer) and schedule_of(optimizer) is None:
        variables.append(innermost(optimizer).learning_rate)
    return variables


def _rate(optimizer: Any) -> Any:
    """Return the rate as it is kept: a variable, a schedule or a function."""
    inner = innermost(optimizer)
    return inner._hyper["learning_rate"] if is_legacy(inner) else inner._learning_rate


def _multiplied(rate: Any, factor: float, optimizer: Any) -> Any:
    """Return a schedule or a function of the user's, times the factor."""
    if factor == 1:
        return rate
    base: Any = type(rate)

    def call(self: Any, *args: Any) -> Any:
        return base.__call__(self, *args) * factor

    def function() -> Any:
        return rate() * factor

    if backend(optimizer) == "tensorflow":
        from spark_estimator.keras.on_tensorflow import unconverted

        call = unconverted(call)
    if schedule_of(optimizer) is None:
        functools.update_wrapper(function, rate)
        setattr(function, _PLAIN, rate)
        return function
    namespace = {
        "__call__": call,
        "__class__": property(lambda self: base),  # by which Keras names it in files
        "__reduce_ex__": lambda self, protocol: (copy.copy, (rate,)),
        _PLAIN: property(lambda self: rate),
    }
    made = copy.copy(rate)
    object.__setattr__(made, "__class__", type(base)(base.__name__, (base,), namespace))
    return made
