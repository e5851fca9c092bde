"""Gradients on Keras' JAX backend: one ordered callback of the compiled step calls the engine with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy
from jax.experimental import io_callback, sparse

from spark_estimator.keras.exchange import KerasExchange


def reduce_gradients(
    exchange: KerasExchange, gradients: Sequence[Any], variables: Sequence[Any], everything: Sequence[Any]
) -> list[Any]:
    """See ``backends.reduce_gradients``. Sparse gradients (BCOO) are sent as whole ones."""
    dense = [gradient.todense() if isinstance(gradient, sparse.BCOO) else gradient for gradient in gradients]
    sent, contexts = exchange.compress(dense)
    forms = tuple(jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in sent)

    def run_on_host(*parts: Any) -> tuple[numpy.ndarray[Any, Any], ...]:
        return tuple(exchange.reduce_on_host([numpy.asarray(part) for part in parts], variables, everything))

    received = io_callback(run_on_host, forms, *sent, ordered=True)
    return exchange.decompress(received, contexts)


def are_all_true(exchange: KerasExchange, flag: Any) -> Any:
    """Return whether a truth value holds on every rank, as a tensor."""
    form = jax.ShapeDtypeStruct((), numpy.bool_)
    return io_callback(lambda value: numpy.bool_(exchange.are_all_true(value)), form, flag, ordered=True)


def factor(exchange: KerasExchange) -> Any:
    """Return ``exchange.factor`` as it is when the step runs."""
    form = jax.ShapeDtypeStruct((), numpy.float32)
    return io_callback(lambda: numpy.float32(exchange.weight.value), form, ordered=True)


def only_when(condition: Any, run: Any, values: Sequence[Any]) -> list[Any]:
    """Return ``run()`` if the condition is true, else the values; a branch of the compiled step."""
    return list(jax.lax.cond(condition, lambda: list(run()), lambda: list(values)))
