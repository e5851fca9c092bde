"""Gradients reduced with the module of Keras' backend."""

from __future__ import annotations

import pytest

from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_local_variables_and_variables_without_a_gradient(two_ranks: RankPool) -> None:
    def values(rank: int) -> list[list[float]]:
        import keras
        import numpy

        from spark_estimator._native import ReduceOp
        from spark_estimator.keras.backends import load_backend, reduce_gradients
        from spark_estimator.keras.compression import Compression
        from spark_estimator.keras.exchange import KerasExchange

        assert load_backend().__name__ == f"spark_estimator.keras.on_{keras.backend.backend()}"
        variables = [keras.Variable(numpy.zeros(2, "float32"), name=name) for name in "abc"]
        gradients = [keras.ops.ones(2) * (rank + 1), keras.ops.ones(2) * 4, None]
        results = []
        for op, scale_local in ((ReduceOp.AVERAGE, True), (ReduceOp.AVERAGE, False), (ReduceOp.SUM, True)):
            exchange = KerasExchange("sgd", op, Compression.none, 1.0, None, False, None, scale_local)
            exchange.local.add(id(variables[1]))
            shared, local, missing = reduce_gradients(exchange, gradients, variables, variables)
            assert missing is None
            results.append([float(keras.ops.convert_to_numpy(gradient)[0]) for gradient in (shared, local)])
        return results

    assert two_ranks.run(values) == [[[1.5, 2.0], [1.5, 4.0], [3.0, 4.0]]] * 2


@pytest.mark.slow
def test_a_rank_outside_of_the_set_keeps_its_gradients(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from spark_estimator._native import ReduceOp
        from spark_estimator.keras.backends import reduce_gradients
        from spark_estimator.keras.compression import Compression
        from spark_estimator.keras.exchange import KerasExchange

        hvd.shutdown()
        both, last = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1])
        hvd.init(process_sets=[last])
        exchange = KerasExchange("sgd", ReduceOp.SUM, Compression.none, 1.0, None, False, last)
        gradients = [object()]
        assert exchange.is_off()
        assert reduce_gradients(exchange, gradients, [keras.Variable([1.0])], []) == gradients
        exchange.process_set = None
        assert not exchange.is_off() and both.process_set_id is None

    two_ranks.run(check)
