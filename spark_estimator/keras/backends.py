"""Reduces a step's gradients over the ranks with the module of the backend that Keras runs on.

Each module of a backend has the same four functions: `reduce_gradients`, `are_all_true`, `factor` and `only_when`. That
of TensorFlow is a part of its binding, which is above this one: it is loaded by name, and has more functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.keras.exchange import KerasExchange
from spark_estimator.keras.importing import backend

_MODULES = {
    "jax": "spark_estimator.keras.on_jax",
    "tensorflow": "spark_estimator.tensorflow.keras_backend",
    "torch": "spark_estimator.keras.on_torch",
}


def load_backend(name: str | None = None) -> Any:
    """Return the module for a backend, by default that of the process's Keras. Raises ImportError: none is."""
    return importlib.import_module(_MODULES[name or backend()])


def reduce_gradients(
    exchange: KerasExchange, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]
) -> list[Any]:
    """Return the gradients, or None, of the variables, reduced. Collective; added to the graph that is built, if any.

    The exchange has the optimizer's settings; `everything` are all variables that it trains.
    """
    if exchange.is_off():
        return list(gradients)
    result = list(gradients)
    indices = [
        index
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        if gradient is not None and id(variable) not in exchange.local
    ]
    if indices:
        sent, owners = [gradients[index] for index in indices], [variables[index] for index in indices]
        for index, gradient in zip(
            indices, load_backend(exchange.backend).reduce_gradients(exchange, sent, owners, everything), strict=True
        ):
            result[index] = gradient
    if exchange.scale_local and exchange.op is ReduceOp.AVERAGE:
        size = context.engine(exchange.process_set).size
        for index, variable in enumerate(variables):
            if id(variable) in exchange.local and result[index] is not None:
                result[index] = result[index] / size
    return result
