"""The classes that a wrapped optimizer gets, and what Keras has to know of it when it compiles a model.

An ordinary optimizer of Keras 3 exchanges in ``apply``. One that accumulates gradients does it where Keras has gathered
them and is about to clip them. A `LossScaleOptimizer` exchanges before it looks whether the gradients are finite, so
that all ranks see the same; when it accumulates, it exchanges that finding, and the inner optimizer the gradients.
Optimizers of Keras 2 exchange as in `keras_2`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from spark_estimator.keras import keras_2
from spark_estimator.keras.backends import load_backend, reduce_gradients
from spark_estimator.keras.exchange import KerasExchange
from spark_estimator.keras.importing import backend, is_keras_2, keras_of
from spark_estimator.keras.optimizers import is_scaler

_MARK = "_spark_estimator_exchange"
_BASE = "_spark_estimator_base"  # the class that it had


def find_exchange(optimizer: object) -> KerasExchange | None:
    """Return how an optimizer, or the one in it, exchanges gradients; None where it does not."""
    exchange: KerasExchange | None = getattr(type(optimizer), _MARK, None)
    if exchange is None and optimizer is not None and is_scaler(optimizer):
        return find_exchange(optimizer.inner_optimizer)  # type: ignore[attr-defined]
    return exchange


def wrap(optimizer: Any, exchange: KerasExchange) -> None:
    """Give the optimizer a class that exchanges gradients; see above."""
    exchange.backend = exchange.backend or backend(optimizer)
    if is_keras_2(optimizer):
        _swap(optimizer, None, exchange)
        return
    _teach_keras()
    if not is_scaler(optimizer):
        mixin: type = _AtTheEndOfPasses if exchange.accumulates > 1 else _InApply
        if mixin is _AtTheEndOfPasses and not hasattr(type(optimizer), "_clip_gradients"):
            raise ValueError(
                f"Keras {keras_of(optimizer).__version__} has changed how it accumulates gradients; use an optimizer "
                "without gradient_accumulation_steps, or another release of Keras."
            )
    elif exchange.accumulates > 1:
        wrap(optimizer.inner_optimizer, exchange)
        mixin = _AgreedFinding
    else:
        mixin = _BeforeTheFinding
    _swap(optimizer, mixin, exchange)


def _swap(optimizer: Any, mixin: type | None, exchange: KerasExchange) -> None:
    base: Any = type(optimizer)

    def register_local_var(self: Any, var: Any) -> None:
        """Leaves the gradients of a variable on this rank."""
        exchange.local.add(id(var))

    def variables(self: Any) -> Any:
        # as scripts of Keras 2 ask for them, and those of Keras 3
        return keras_2.CallableList(base.variables.fget(self))

    namespace = _imitate(base) | {_MARK: exchange, _BASE: base, "register_local_var": register_local_var}
    if isinstance(base.variables, property):
        namespace["variables"] = property(variables)
    if mixin is None:
        namespace |= keras_2.make_namespace(base, exchange)
    elif backend(optimizer) == "tensorflow":
        keep_unconverted = load_backend("tensorflow").keep_unconverted
        for name in ("apply", "check_finite", "_backend_apply_gradients", "_clip_gradients"):
            if hasattr(mixin, name):
                namespace[name] = keep_unconverted(getattr(mixin, name))
    bases = (base,) if mixin is None else (mixin, base)
    object.__setattr__(optimizer, "__class__", type(base)(base.__name__, bases, namespace))


def _imitate(base: Any) -> dict[str, Any]:
    """Return what makes a class look like the optimizer's former one, to which copies and pickles belong."""

    def from_config(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        return base.from_config(config, *args, **kwargs)

    return {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _make_reduce_ex(base),
        "from_config": classmethod(from_config),
    }


def _make_reduce_ex(base: Any) -> Any:
    """Return a ``__reduce_ex__`` by which a copy, or a pickle, is of the class that the optimizer had."""

    def reduce_ex(self: Any, protocol: Any) -> Any:
        factory, arguments, *state = base.__reduce_ex__(self, protocol)
        if getattr(factory, "__self__", None) is type(self):  # a class method of Keras' own pickling
            factory = getattr(base, factory.__name__)
        return factory, tuple(base if argument is type(self) else argument for argument in arguments), *state

    return reduce_ex


def unwrap(optimizer: Any) -> None:
    """Take back what `wrap` has done to this very optimizer."""
    object.__setattr__(optimizer, "__class__", getattr(type(optimizer), _BASE))


class _InApply:
    _spark_estimator_exchange: KerasExchange

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        # the base class builds the optimizer, and refuses what does not fit
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if len(grads) == len(variables) and grads:
            everything = self._trainable_variables if self.built else variables  # type: ignore[attr-defined]
            grads = reduce_gradients(self._spark_estimator_exchange, grads, variables, everything)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]


class _BeforeTheFinding(_InApply):
    """For a `LossScaleOptimizer`: scaled gradients are exchanged, so that an overflow there is detected, too."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        # Keras' JAX trainer calls this, which leads to the inner optimizer and not to `apply`
        variables = self._trainable_variables  # type: ignore[attr-defined]
        grads = reduce_gradients(self._spark_estimator_exchange, list(grads), variables, variables)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]


class _AgreedFinding:
    """For a `LossScaleOptimizer` whose inner optimizer accumulates: gradients that are not finite stop all ranks."""

    _spark_estimator_exchange: KerasExchange

    def check_finite(self, grads: Any) -> Any:
        finite = super().check_finite(grads)  # type: ignore[misc]
        exchange = self._spark_estimator_exchange
        return finite if exchange.is_off() else load_backend(exchange.backend).are_all_true(exchange, finite)


class _AtTheEndOfPasses:
    """For an optimizer with ``gradient_accumulation_steps``: what the passes have gathered is exchanged, once."""

    _spark_estimator_exchange: KerasExchange

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        object.__setattr__(self, "_spark_estimator_variables", list(trainable_variables))
        exchange = self._spark_estimator_exchange
        if exchange.weight.is_used and not exchange.is_off():  # each pass has a different factor
            factor = load_backend(exchange.backend).factor(exchange)
            keras = keras_of(self)
            grads = [gradient * keras.ops.cast(factor, gradient.dtype) for gradient in grads]
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        exchange = self._spark_estimator_exchange
        variables: Sequence[Any] = self._spark_estimator_variables  # type: ignore[attr-defined]
        steps = self.gradient_accumulation_steps  # type: ignore[attr-defined]

        def exchange_sums() -> list[Any]:
            gathered = reduce_gradients(exchange, list(grads), variables, self._trainable_variables)  # type: ignore[attr-defined]
            return [gradient * steps for gradient in gathered] if exchange.sums_passes else gathered

        if exchange.backend == "jax":
            # Keras has no branch there: it computes an update in each pass, and drops all but the last
            is_last = (self._iterations + 1) % steps == 0  # type: ignore[attr-defined]
            grads = load_backend(exchange.backend).only_when(is_last, exchange_sums, list(grads))
        else:
            grads = exchange_sums()
        return super()._clip_gradients(grads)  # type: ignore[misc]


@functools.cache
def _teach_keras() -> None:
    """Change two decisions of ``model.compile`` for a wrapped optimizer.

    A `LossScaleOptimizer` that is put around it takes over its exchange: inside, it would be called by those ranks only
    whose own gradients are finite. And XLA is not chosen for it on TensorFlow, from which the engine cannot be called.
    """
    keras = sys.modules["keras"]
    scaler = keras.optimizers.LossScaleOptimizer
    scaler.__init__ = _take_over_exchange(scaler.__init__)
    trainer = _find_trainer(keras)
    if trainer is not None and keras.backend.backend() == "tensorflow":
        trainer._resolve_auto_jit_compile = _avoid_xla(trainer._resolve_auto_jit_compile)


def _take_over_exchange(initialize: Any) -> Any:
    @functools.wraps(initialize)
    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        exchange = getattr(type(inner_optimizer), _MARK, None)
        initialize(self, inner_optimizer, *args, **kwargs)
        if exchange is not None:
            unwrap(inner_optimizer)
            wrap(self, exchange)

    return __init__


def _avoid_xla(resolve: Any) -> Any:
    @functools.wraps(resolve)
    def _resolve_auto_jit_compile(self: Any) -> bool:
        return False if find_exchange(getattr(self, "optimizer", None)) is not None else bool(resolve(self))

    return _resolve_auto_jit_compile


def _find_trainer(keras: Any) -> Any:
    """Return Keras' class that decides about XLA; None where this release has another one."""
    for base in keras.Model.__mro__:
        if "_resolve_auto_jit_compile" in vars(base):
            return base
    return None
