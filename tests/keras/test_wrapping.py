"""The classes of wrapped optimizers: accumulated gradients, scaled gradients, and scaled learning rates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_passes_of_one_step_are_added_up_or_averaged(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from spark_estimator.keras.exchange import KerasExchange
        from tests.keras.training import close, data, model, share, weights

        # The ranks ask for their agreement before each exchange: in TensorFlow's graphs by a node.
        target: Any = KerasExchange
        name, reductions = "check_variables", 0
        if keras.backend.backend() == "tensorflow":
            from spark_estimator.tensorflow import works as target

            name = "_agree_once"
        agreed = getattr(target, name)

        def counting(*args: Any) -> None:
            nonlocal reductions
            reductions += 1
            agreed(*args)

        for average, rate in ((True, 0.05), (False, 0.025)):
            alone = model()
            alone.compile(keras.optimizers.SGD(0.05), "mse")
            rows, targets = data()
            alone.fit(rows, targets, batch_size=16, shuffle=False, verbose=0)
            together = model()
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            together.compile(optimizer, "mse")
            rows, targets = share(rank, 2, 4)
            reductions = 0
            setattr(target, name, counting)
            try:
                together.fit(rows, targets, batch_size=4, shuffle=False, verbose=0)
            finally:
                setattr(target, name, agreed)
            assert reductions == 2, reductions
            assert close(weights(together), weights(alone))

    two_ranks.run(check)


@pytest.mark.parametrize("passes", [1, 2])
def test_ranks_agree_whether_scaled_gradients_are_finite(two_ranks: RankPool, passes: int) -> None:
    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        keras.config.set_dtype_policy("mixed_float16")
        try:
            together = model(policy="mixed_float16")
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.01), backward_passes_per_step=passes, average_aggregated_gradients=True
            )
            together.compile(optimizer, "mse")
        finally:
            keras.config.set_dtype_policy("float32")
        # Keras has put a scaler around it, whose scale is too large here
        scaler = together.optimizer
        assert isinstance(scaler, keras.optimizers.LossScaleOptimizer)
        rows, targets = share(rank, 2, 4)
        start = weights(together)
        poisoned = rows.copy()
        poisoned[:4] *= numpy.float32("inf") if rank == 1 else 1
        together.fit(poisoned[:4], targets[:4], batch_size=4, shuffle=False, verbose=0)
        assert close(start, weights(together)), "a rank has stepped although another's gradients are not finite"
        scale = float(scaler.dynamic_scale)
        assert scale == scaler.initial_scale / 2
        assert hvd.allgather_object(scale) == [scale] * 2
        together.fit(rows, targets, batch_size=4, epochs=8, shuffle=False, verbose=0)
        ended = weights(together)
        assert not close(start, ended)
        assert all(numpy.isfinite(weight).all() for weight in ended)
        assert all(close(ended, theirs) for theirs in hvd.allgather_object(ended))

    two_ranks.run(check)


def test_an_unwrapped_optimizer_has_its_class_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import pickle

        import keras

        import spark_estimator.keras as hvd
        from spark_estimator.keras.wrapping import find_exchange, unwrap

        plain = type(keras.optimizers.SGD())
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
        assert type(optimizer) is not plain is type(pickle.loads(pickle.dumps(optimizer)))
        exchange = find_exchange(optimizer)
        assert exchange is not None and find_exchange(keras.optimizers.SGD()) is None
        scaler = keras.optimizers.LossScaleOptimizer(optimizer)  # which takes over the exchange
        assert find_exchange(scaler) is exchange and find_exchange(optimizer) is None
        assert type(optimizer) is plain
        unwrap(scaler)
        assert type(scaler) is keras.optimizers.LossScaleOptimizer and find_exchange(scaler) is None

    two_ranks.run(check)
