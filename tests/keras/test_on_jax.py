"""Gradients on Keras' JAX backend, in compiled steps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


def test_gradients_of_a_compiled_step(two_ranks: RankPool) -> None:
    if two_ranks.backend != "jax":
        pytest.skip("of JAX alone")

    def values(rank: int) -> list[Any]:
        import jax
        import keras
        import numpy
        from jax.experimental import sparse

        from spark_estimator._native import ReduceOp
        from spark_estimator.keras import on_jax
        from spark_estimator.keras.compression import Compression
        from spark_estimator.keras.exchange import KerasExchange

        variables = [keras.Variable(numpy.zeros(2, "float32"), name=name) for name in "ab"]
        exchange = KerasExchange("sgd", ReduceOp.SUM, Compression.bf16, 1.0, 2, False, None)

        @jax.jit
        def step(scale: Any) -> Any:
            rows = sparse.BCOO.fromdense(jax.numpy.array([1.0, 0.0]), nse=1)
            reduced = on_jax.reduce_gradients(exchange, [jax.numpy.ones(2) * scale, rows], variables, variables)
            kept = on_jax.only_when(scale > 1, lambda: [reduced[0]], [jax.numpy.zeros(2)])
            return reduced, kept, on_jax.are_all_true(exchange, scale > 1), on_jax.factor(exchange)

        results = []
        for factor in (1.0, 0.5):  # read when the step runs, not when it is compiled
            exchange.weight.set(factor)
            reduced, [kept], every, read = step(rank + 1.0)
            assert {gradient.dtype.name for gradient in reduced} == {"float32"}
            results.append([*(g.tolist() for g in reduced), kept.tolist(), bool(every), float(read)])
        return results

    for rank, results in enumerate(two_ranks.run(values)):
        kept = [3.0, 3.0] if rank == 1 else [0.0, 0.0]
        assert results == [[[3.0, 3.0], [2.0, 0.0], kept, False, factor] for factor in (1.0, 0.5)]
