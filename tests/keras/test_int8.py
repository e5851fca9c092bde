"""Gradients that are sent as int8 between hosts, on each backend of Keras."""

from __future__ import annotations

from tests.keras.conftest import RankPool


def test_gradients_as_int8(two_ranks: RankPool) -> None:
    """A compiled model learns what it learns without, to what rounding leaves out; all ranks hold the same bits."""

    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.support.by_sockets import by_sockets

        def trained(compression: type) -> list[numpy.ndarray]:  # type: ignore[type-arg]
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.layers.Input((100,)), keras.layers.Dense(100), keras.layers.Dense(1)])
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
            model.compile(optimizer, "mse", jit_compile=False)
            values = numpy.random.default_rng(rank).standard_normal((64, 100)).astype("float32")
            model.fit(values, values.sum(1), batch_size=16, epochs=3, shuffle=False, verbose=0)
            return [numpy.asarray(value) for value in model.get_weights()]

        with by_sockets():
            plain, rounded = trained(hvd.Compression.none), trained(hvd.Compression.int8)
            moved = max(numpy.abs(exact - near).max() for exact, near in zip(plain, rounded, strict=True))
            assert 0 < moved < 0.01, moved
            every = hvd.allgather(numpy.concatenate([value.ravel() for value in rounded])[None])
            every = numpy.asarray(every)
            assert numpy.array_equal(every[0], every[1])

    two_ranks.run(check)
