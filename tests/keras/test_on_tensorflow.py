"""Gradients on Keras' TensorFlow backend: nodes of the graph, rows, and no XLA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


def test_gradients_of_a_graph_of_tensorflow(two_ranks: RankPool) -> None:
    """In compiled steps, with rows, groups and shares of the mean."""
    if two_ranks.backend != "tensorflow":
        pytest.skip("what TensorFlow's graphs are made of")

    def check(rank: int) -> list[list[float]]:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.keras as hvd
        from spark_estimator.keras.wrapping import find_exchange

        def results(groups: Any, predivide: float, factor: float | None) -> list[float]:
            start = [numpy.zeros((4, 2), "float32"), numpy.zeros(2000, "float32"), numpy.zeros(3, "float32")]
            variables = [keras.Variable(each) for each in start]
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), groups=groups, gradient_predivide_factor=predivide
            )
            if factor is not None:
                exchange = find_exchange(optimizer)
                assert exchange is not None
                exchange.weight.is_used = True
                exchange.weight.set(factor)

            @tf.function
            def step(scale: Any) -> None:
                rows = tf.IndexedSlices(tf.ones((2, 2)) * scale, tf.constant([rank, 3]), tf.constant([4, 2]))
                optimizer.apply([rows, tf.fill([2000], scale), tf.fill([3], 3.0 * scale)], variables)

            for number in (1.0, 2.0):
                step(tf.constant((1.0 + rank) * number))
            kinds = {node.type for node in step.get_concrete_function(tf.constant(1.0)).graph.get_operations()}
            assert "SparkEstimatorAllreduce" in kinds, kinds
            assert not kinds & {"PyFunc", "EagerPyFunc"}, kinds
            first, second, third = (keras.ops.convert_to_numpy(variable) for variable in variables)
            assert (second == second[0]).all()
            return [*first.flatten().tolist(), float(second[0]), *third.tolist()]

        return [results(*arguments) for arguments in ((None, 1.0, None), (2, 2.0, None), (None, 1.0, 2.0 * (1 - rank)))]

    first, second = two_ranks.run(check)
    assert first == second
    # Ranks give 1 and 2, then twice that: their averages' sum is 4.5. The rows 0 and 1 are one rank's each.
    assert first[0] == first[1] == [-1.5, -1.5, -3.0, -3.0, 0.0, 0.0, -4.5, -4.5, -4.5, *[-13.5] * 3]
    assert first[2] == [-3.0, -3.0, 0.0, 0.0, 0.0, 0.0, -3.0, -3.0, -3.0, *[-9.0] * 3]


def test_two_optimizers_of_like_variables_in_one_graph(two_ranks: RankPool) -> None:
    """As of twin critics: what they exchange looks alike, and is in flight at the same time."""
    if two_ranks.backend != "tensorflow":
        pytest.skip("what TensorFlow's graphs are made of")

    def check(rank: int) -> list[float]:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.keras as hvd

        variables = [keras.Variable(numpy.zeros(3, "float32"), name="w") for _ in range(4)]
        optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in variables]

        @tf.function
        def step(scale: Any) -> None:
            for number, (optimizer, variable) in enumerate(zip(optimizers, variables, strict=True)):
                optimizer.apply([tf.fill([3], scale * (10.0**number))], [variable])

        for _ in range(20):
            step(tf.constant(rank + 1.0))
        return [float(variable.numpy()[0]) for variable in variables]

    assert two_ranks.run(check) == [[-30.0, -300.0, -3000.0, -30000.0]] * 2


def test_tensorflow_gathers_rows_and_keeps_xla_off(two_ranks: RankPool) -> None:
    if two_ranks.backend != "tensorflow":
        pytest.skip("of TensorFlow alone")

    def check(rank: int) -> None:
        import keras
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as tensorflow_binding
        import spark_estimator.tensorflow.keras as hvd
        from tests.keras.training import model, share

        def with_rows(as_dense: bool) -> None:
            table, bias = keras.Variable(numpy.zeros((4, 2), "float32")), keras.Variable(numpy.zeros(1, "float32"))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
            optimizer.build([table, bias])

            @tf.function
            def step() -> None:
                rows = tf.IndexedSlices(tf.ones((1 + rank, 2)), tf.range(1 + rank), tf.constant([4, 2]))
                optimizer.apply([rows, tf.constant([4.0 * rank])], [table, bias])

            step()
            assert table.numpy()[:, 0].tolist() == [-1.0, -0.5, 0.0, 0.0]
            assert bias.numpy().tolist() == [-2.0]

        of_tensorflow = tensorflow_binding.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(of_tensorflow)
        with_rows(False)
        with_rows(True)
        rows, targets = share(rank, 2, 4)
        compiled = model()
        compiled.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=True)
        with pytest.raises(ValueError, match="jit_compile=False"):
            compiled.fit(rows, targets, batch_size=4, verbose=0)
        devices = tf.config.list_physical_devices
        fake = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        tf.config.list_physical_devices = lambda *kind: [*devices(), fake]  # Keras looks before it chooses XLA
        try:
            plain, wrapped = model(), model()
            plain.compile(keras.optimizers.SGD(0.01), "mse")
            wrapped.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        finally:
            tf.config.list_physical_devices = devices
        assert (plain.jit_compile, wrapped.jit_compile) == (True, False)

    two_ranks.run(check)


def test_functions_of_the_backend(two_ranks: RankPool) -> None:
    if two_ranks.backend != "tensorflow":
        pytest.skip("of TensorFlow alone")

    def check(rank: int) -> None:
        import tensorflow as tf

        from spark_estimator._native import ReduceOp
        from spark_estimator.keras.compression import Compression
        from spark_estimator.keras.exchange import KerasExchange
        from spark_estimator.tensorflow import keras_backend

        exchange = KerasExchange("sgd", ReduceOp.SUM, Compression.none, 1.0, None, False, None)

        @tf.function
        def step(flag: Any) -> Any:
            return keras_backend.are_all_true(exchange, flag), keras_backend.factor(exchange)

        for flag, factor in ((True, 1.0), (rank == 0, 2.5)):
            exchange.weight.set(factor)  # read when the step runs, not when it is traced
            every, read = step(tf.constant(flag))
            assert (bool(every), float(read)) == (factor == 1.0, factor)
        assert keras_backend.only_when(False, lambda: (3, 4), [1, 2]) == [3, 4]

    two_ranks.run(check)
