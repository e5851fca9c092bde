"""The callbacks of the Keras binding, in ``fit`` on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_all_callbacks_in_one_fit(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int, folder: str) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        trained = model(seed=rank)
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.02, momentum=0.9)), "mse", metrics=["mae"])
        rows, targets = share(rank, 2, 4)
        rates: list[float] = []
        seen: list[Any] = []

        class Watch(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_begin(self, logs: Any = None) -> None:
                seen.append(weights(self.model))

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if hasattr(trained, "jax_state_sync"):  # while an epoch runs, its variables are empty
                    trained.jax_state_sync()
                rates.append(float(trained.optimizer.learning_rate))

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                seen.append({**(logs or {})})

        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.02, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(0.02, 0.5, start_epoch=2),
            Watch(),
        ]
        best = str(Path(folder, "best.keras"))
        if rank == 0:
            callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=best))
        history = trained.fit(rows, targets, batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)

        begun, *epochs = seen
        assert all(close(begun, theirs) for theirs in hvd.allgather_object(begun)), "ranks began with other weights"
        expected = [0.01 * (1 + batch / 8) for batch in range(1, 9)] + [0.02] * 4 + [0.01] * 4
        assert numpy.allclose(rates, expected), rates
        assert [round(epoch["lr"], 6) for epoch in epochs] == [0.015, 0.02, 0.02, 0.01]
        assert hvd.allgather_object(epochs) == [epochs] * 2
        metrics = trained.evaluate(rows, targets, batch_size=16, verbose=0, return_dict=True)
        of_ranks = [value["loss"] for value in hvd.allgather_object(metrics)]
        assert of_ranks[0] != of_ranks[1]
        assert history.history["loss"][-1] < history.history["loss"][0]
        ended = weights(trained)
        assert all(close(ended, theirs) for theirs in hvd.allgather_object(ended))
        if rank == 0:
            assert Path(best).exists()

    two_ranks.run(check, str(tmp_path))


def test_momentum_follows_the_rate(two_ranks: RankPool) -> None:
    """Against plain arithmetic: v = m * (new / old) * v - new * g."""

    def check(rank: int) -> None:
        import keras
        import numpy

        import spark_estimator.keras as hvd

        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        trained = keras.Sequential([keras.layers.Input((1,)), layer])
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5)), "mse")
        ones = numpy.ones((4, 1), "float32")
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1.0 if epoch < 1 else 0.5)
        trained.fit(ones, ones, batch_size=2, epochs=2, verbose=0, callbacks=[schedule])
        weight = velocity = 0.0
        for old, new in ((0.5, 0.1), (0.1, 0.1), (0.1, 0.05), (0.05, 0.05)):
            velocity = 0.5 * velocity * (new / old) - new * 2 * (weight - 1)
            weight += velocity
        assert numpy.allclose(layer.get_weights()[0], weight, rtol=1e-4), (layer.get_weights(), weight)
        no_warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=7.0, warmup_epochs=0, verbose=1)
        history = trained.fit(ones, ones, batch_size=2, verbose=0, callbacks=[no_warmup])
        assert history.history["lr"] == pytest.approx([0.05])  # as it was
        scheduled = model_with_schedule = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        scheduled.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
        with pytest.raises(ValueError, match="the optimizer has a LearningRateSchedule"):
            model_with_schedule.fit(ones, ones, verbose=0, callbacks=[schedule])

    two_ranks.run(check)


def test_a_model_that_its_first_batch_builds(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, share, weights

        keras.utils.set_random_seed(rank)
        trained = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
        trained.fit(rows, targets, batch_size=4, verbose=0, callbacks=[first])
        ended = weights(trained)
        assert first.broadcast_done and all(close(ended, theirs) for theirs in hvd.allgather_object(ended))

    two_ranks.run(check)


def test_a_metric_of_one_rank_is_given_to_all(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import spark_estimator.keras as hvd

        average = hvd.callbacks.MetricAverageCallback()
        logs: dict[str, Any] = {"loss": 1.0 + rank, "word": "x"}
        if rank == 1:
            logs["val_loss"] = 5.0
        average.on_epoch_end(0, logs)
        assert logs == {"loss": 1.5, "val_loss": 5.0, "word": "x"}

    two_ranks.run(check)


def test_a_replaced_end_of_a_batch_comes_before_the_broadcast(two_ranks: RankPool) -> None:
    """NVIDIA's distributed-embeddings registers each rank's tables there, in a method of the object."""

    def check(rank: int) -> tuple[bool, str]:
        import types

        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import model

        trained = model(seed=rank)
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        kernel = trained.layers[-1].kernel
        before = numpy.array(keras.ops.convert_to_numpy(kernel))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        original = callback.on_batch_end

        def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
            self.register_local_var(kernel)
            original(batch, logs)

        callback.on_batch_end = types.MethodType(on_batch_end, callback)
        rows = numpy.ones((4, trained.input_shape[-1]), numpy.float32)
        trained.fit(rows, trained.predict(rows, verbose=0), verbose=0, callbacks=[callback])
        others = trained.layers[0].kernel
        assert len({value.tobytes() for value in hvd.allgather_object(keras.ops.convert_to_numpy(others))}) == 1
        try:
            callback.register_local_var(others)
        except RuntimeError as error:
            return numpy.array_equal(before, keras.ops.convert_to_numpy(kernel)), str(error)
        return False, ""

    for rank, (kept, message) in enumerate(two_ranks.run(check)):
        assert kept and f"has already been broadcast on rank {rank}" in message
