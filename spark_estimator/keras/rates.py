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

from spark_estimator.keras.backends import load_backend
from spark_estimator.keras.importing import backend, is_keras_2
from spark_estimator.keras.optimizers import (
    find_innermost,
    find_schedule,
    is_legacy,
    list_variables,
    read_rate,
    set_rate,
)

_PLAIN = "_spark_estimator_plain"


def rescale_rate(optimizer: Any, old: int, new: int) -> None:
    """Change a built optimizer's rate from `old` times to `new` times; a compiled step keeps that of a schedule."""
    inner, rate = find_innermost(optimizer), _find_rate(optimizer)
    if hasattr(rate, "assign"):
        if old != new:
            set_rate(optimizer, read_rate(optimizer) * new / old)
        return
    plain = getattr(rate, _PLAIN, None)
    made = _multiply(rate, new / old, optimizer) if plain is None else _multiply(plain, new, optimizer)
    if is_legacy(inner):
        inner._set_hyper("learning_rate", made)
        return
    inner.learning_rate = made
    if is_keras_2(inner):  # which computes it at the beginning of a step otherwise
        inner._compute_current_learning_rate()


@contextlib.contextmanager
def use_single_process_rate(optimizer: Any, ranks: int) -> Iterator[None]:
    """Divide a rate that is a number by the number of ranks while this context lasts, for a file that others read."""
    rate = read_rate(optimizer) if hasattr(_find_rate(optimizer), "assign") else None
    if rate is None or ranks == 1:
        yield
        return
    set_rate(optimizer, rate / ranks)
    try:
        yield
    finally:
        set_rate(optimizer, rate)


def list_variables_with_rate(optimizer: Any) -> list[Any]:
    """Return the optimizer's variables and, last, its learning rate, which is none of them in Keras 2."""
    variables = list_variables(optimizer)
    if is_keras_2(optimizer) and find_schedule(optimizer) is None:
        variables.append(find_innermost(optimizer).learning_rate)
    return variables


def _find_rate(optimizer: Any) -> Any:
    """Return the rate as it is kept: a variable, a schedule or a function."""
    inner = find_innermost(optimizer)
    return inner._hyper["learning_rate"] if is_legacy(inner) else inner._learning_rate


def _multiply(rate: Any, factor: float, optimizer: Any) -> Any:
    """Return a schedule or a function of the user's, times the factor."""
    if factor == 1:
        return rate
    base: Any = type(rate)

    def call(self: Any, *args: Any) -> Any:
        return base.__call__(self, *args) * factor

    def function() -> Any:
        return rate() * factor

    if backend(optimizer) == "tensorflow":
        call = load_backend("tensorflow").keep_unconverted(call)
    if find_schedule(optimizer) is None:
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
