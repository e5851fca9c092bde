"""Copies variables' values on their own device, so that a step can be undone without a transfer to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark_estimator.keras.backends import backend_module
from spark_estimator.keras.importing import backend, keras_of
from spark_estimator.keras.variables import assign


class DeviceCopies:
    """Makes copies of the same variables again and again.

    Args:
        variables: which are built.
        model: of either Keras, whose they are.
    """

    def __init__(self, variables: Sequence[Any], model: Any) -> None:
        self._variables = list(variables)
        self._ops = keras_of(model).ops if backend(model) == "jax" else None
        self._take: Callable[[], list[Any]] = backend_module(backend(model)).copier(self._variables)

    def take(self) -> list[Any]:
        """[variables] their values now."""
        return self._take()

    def restore(self, copies: Sequence[Any]) -> None:
        """Gives the variables their values of then. `copies` stay valid."""
        if self._ops is not None:  # a step reuses the memory of the variables' arrays
            copies = [self._ops.copy(value) for value in copies]
        for variable, value in zip(self._variables, copies, strict=True):
            assign(variable, value)
