"""Optimizers of Keras 2 (``tf_keras``) that exchange gradients when they are computed, as Horovod's do.

``model.fit`` and ``minimize`` compute gradients by the optimizer. A loop that takes them from its own
``tf.GradientTape``, and gives them to ``apply_gradients``, has them exchanged by ``hvd.DistributedGradientTape``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from spark_estimator.keras.backends import load_backend, reduce_gradients
from spark_estimator.keras.exchange import KerasExchange

#: By which Keras finds the public name of a class, for saved files. It looks at the very class only.
_PUBLIC_NAMES = ("_keras_api_names", "_keras_api_names_v1")


class CallableList(list[Any]):
    """A list that also returns itself when it is called: ``optimizer.variables`` and ``optimizer.variables()``."""

    def __call__(self) -> CallableList:
        return self


def make_namespace(base: Any, exchange: KerasExchange) -> dict[str, Any]:
    """Return the attributes that a wrapped optimizer's class adds to its former one; `base`: the class that it had."""
    passes = _Passes(exchange) if exchange.accumulates > 1 else None

    def exchange_pairs(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if passes is not None:
            gradients = passes.add_gradients(gradients, variables)
        else:
            gradients = reduce_gradients(exchange, gradients, variables, variables)
        return list(zip(gradients, variables, strict=True))

    def compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None) -> Any:
        if hasattr(base, "_compute_gradients"):
            return self._compute_gradients(loss, var_list, tape=tape)
        return exchange_pairs(self, base.compute_gradients(self, loss, var_list, tape))

    def _compute_gradients(self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        return exchange_pairs(self, base._compute_gradients(self, loss, var_list, grad_loss, tape=tape))

    def get_gradients(self: Any, loss: Any, params: Any) -> Any:
        # of a graph of TensorFlow 1
        params = list(params)
        pairs = zip(base.get_gradients(self, loss, params), params, strict=True)
        return [gradient for gradient, _ in exchange_pairs(self, list(pairs))]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if passes is None:
            return base.apply_gradients(self, pairs, *args, **kwargs)
        return passes.apply(self, lambda: base.apply_gradients(self, pairs, *args, **kwargs))

    keep_unconverted = load_backend("tensorflow").keep_unconverted
    added: dict[str, Any] = {"_HAS_AGGREGATE_GRAD": True, "compute_gradients": keep_unconverted(compute_gradients)}
    if hasattr(base, "_compute_gradients"):
        added["_compute_gradients"] = keep_unconverted(_compute_gradients)
        added["get_gradients"] = get_gradients
    if passes is not None:
        added["apply_gradients"] = keep_unconverted(apply_gradients)
    return added | {name: vars(base)[name] for name in _PUBLIC_NAMES if name in vars(base)}


class _Passes:
    """Several passes' gradients, which are added up before the ranks exchange them and step."""

    def __init__(self, exchange: KerasExchange) -> None:
        self._exchange = exchange
        make_aggregation = load_backend("tensorflow").Aggregation
        self._aggregation = make_aggregation(exchange.accumulates, average=not exchange.sums_passes)

    def add_gradients(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        exchange = self._exchange
        if exchange.weight.is_used and not exchange.is_off():  # each pass has a different factor
            import tensorflow as tf

            factor = load_backend(exchange.backend).factor(exchange)
            gradients = [
                None if gradient is None else gradient * tf.cast(factor, gradient.dtype) for gradient in gradients
            ]
        reduce = functools.partial(reduce_gradients, exchange, variables=variables, everything=variables)
        result: list[Any] = self._aggregation.add_gradients(gradients, variables, reduce)
        return result

    def apply(self, optimizer: Any, apply: Callable[[], Any]) -> Any:
        # as in Horovod, a pass counts as one of the optimizer's iterations
        return self._aggregation.apply(apply, lambda: optimizer.iterations.assign_add(1))
