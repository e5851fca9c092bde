"""The callbacks of the Keras binding, in ``fit`` on two ranks, and what a saved model is elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import RankPool


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
        own = trained.evaluate(rows, targets, batch_size=16, verbose=0, return_dict=True)
        of_ranks = [value["loss"] for value in hvd.allgather_object(own)]
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
        scheduled = model_with_schedule = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        scheduled.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
        with pytest.raises(ValueError, match="the optimizer has a LearningRateSchedule"):
            model_with_schedule.fit(ones, ones, verbose=0, callbacks=[schedule])

    two_ranks.run(check)


def test_all_ranks_stop_when_one_does(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from spark_estimator.errors import MismatchError
        from tests.keras.training import model, share

        trained = model()
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        if rank == 1:
            callbacks.append(keras.callbacks.EarlyStopping("loss", mode="max", patience=1))  # its loss falls
        history = trained.fit(rows, targets, batch_size=4, epochs=6, verbose=0, callbacks=callbacks)
        assert history.epoch == [0, 1]
        history = trained.fit(rows, targets, batch_size=4, epochs=1, verbose=0, callbacks=callbacks[:1])
        assert history.epoch == [0]
        with pytest.raises(MismatchError, match=r"Rank 0 has: 4 batches in an epoch. Rank 1 has: 3 batches"):
            trained.fit(
                rows[: 16 - rank * 4], targets[: 16 - rank * 4], batch_size=4, verbose=0, callbacks=callbacks[:1]
            )

    two_ranks.run(check)


def test_a_wish_to_stop_within_an_epoch_waits_for_its_end(two_ranks: RankPool) -> None:
    """Keras would leave the epoch at once, in which the other rank goes on."""

    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        class Stop(keras.callbacks.Callback):  # type: ignore[misc]
            def __init__(self, moment: str) -> None:
                super().__init__()
                self.batches = 0
                setattr(self, moment, self.stop)

            def stop(self, batch: int, logs: Any = None) -> None:
                if batch == 1:
                    self.model.stop_training = True

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                super().on_train_batch_end(batch, logs)  # which calls on_batch_end
                self.batches += 1

        rows, targets = share(rank, 2, 4)
        begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        for moment in ("on_train_batch_begin", "on_batch_end"):
            trained = model()
            trained.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
            for each in (begin, hvd.callbacks.MetricAverageCallback()):
                stop = Stop(moment if rank == 1 else "unused")
                history = trained.fit(rows, targets, batch_size=4, epochs=3, verbose=0, callbacks=[each, stop])
                assert (history.epoch, stop.batches) == ([0], 4), (moment, each, history.epoch, stop.batches)
            assert all(close(weights(trained), theirs) for theirs in hvd.allgather_object(weights(trained)))
        if rank == 1:
            targets = targets * float("nan")  # the other rank's loss is finite when the epoch begins
        guards = [begin, keras.callbacks.TerminateOnNaN()] if rank == 1 else [begin]
        assert trained.fit(rows, targets, batch_size=4, epochs=3, verbose=0, callbacks=guards).epoch == [0]

    two_ranks.run(check)


@pytest.mark.parametrize("shorter", [0, 1])
def test_ranks_are_told_whose_generator_ended_first(two_ranks: RankPool, shorter: int) -> None:
    def check(rank: int, shorter: int) -> None:
        from collections.abc import Iterator

        import keras

        import spark_estimator.keras as hvd
        from spark_estimator.errors import MismatchError
        from tests.keras.training import close, model, share, weights

        rows, targets = share(rank, 2, 4)

        def batches(number: int) -> Iterator[Any]:
            for _ in range(number):
                yield rows[:4], targets[:4]

        def compiled(steps_per_execution: int = 1) -> Any:
            made = model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
            made.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
            return made

        begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        number = 6 if rank == shorter else 8
        told = [f"Rank {each} has: {6 if each == shorter else 8} batches in epoch 1" for each in range(2)]
        for first in (begin, hvd.callbacks.MetricAverageCallback()):
            for steps_per_epoch in (None, 8):
                with pytest.raises(MismatchError, match=r"give model\.fit a steps_per_epoch=.*" + r"\. ".join(told)):
                    compiled().fit(
                        batches(number), steps_per_epoch=steps_per_epoch, epochs=2, verbose=0, callbacks=[first]
                    )
        if keras.backend.backend() == "tensorflow":
            with pytest.raises(MismatchError, match=r"Rank 0 has: \d (batches|steps of the optimizer) in epoch 1"):
                compiled(steps_per_execution=4).fit(batches(number), epochs=2, verbose=0, callbacks=[begin])
        trained = compiled()
        assert trained.fit(batches(6), epochs=1, verbose=0, callbacks=[begin]).epoch == [0]
        assert all(close(weights(trained), theirs) for theirs in hvd.allgather_object(weights(trained)))

    two_ranks.run(check, shorter)


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


def test_a_rank_may_have_made_more_layers_before(two_ranks: RankPool) -> None:
    """Keras numbers layers by process, and an optimizer's variables have the number within their names."""

    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        if rank == 1:
            model()
        trained = model(seed=rank)
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        trained.fit(rows, targets, batch_size=4, verbose=0, callbacks=begin)
        assert all(close(weights(trained), theirs) for theirs in hvd.allgather_object(weights(trained)))

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


def test_a_saved_model_needs_us_neither_here_nor_elsewhere(two_ranks: RankPool, tmp_path: Path) -> None:
    def check(rank: int, path: str) -> list[Any]:
        import keras
        import numpy

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        trained = model()
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        rows, targets = share(rank, 2, 4)
        trained.fit(rows, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
        if rank == 0:
            trained.save(path)
        hvd.barrier()
        loaded = hvd.load_model(path)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(loaded.optimizer)
        state = [numpy.array(keras.ops.convert_to_numpy(v)) for v in trained.optimizer.variables]
        assert close(state, [keras.ops.convert_to_numpy(v) for v in loaded.optimizer.variables])
        for each in (trained, loaded):
            each.fit(rows, targets, batch_size=4, shuffle=False, verbose=0)
        assert close(weights(trained), weights(loaded))
        assert all(close(weights(loaded), theirs) for theirs in hvd.allgather_object(weights(loaded)))
        return [float(keras.ops.convert_to_numpy(state[0])), float(numpy.abs(state[2]).sum())]

    path = str(tmp_path / "model.keras")
    iterations, gathered = two_ranks.run(check, path)[0]
    program = f"""
import sys
sys.modules["spark_estimator"] = None
import keras
model = keras.saving.load_model({path!r})
assert type(model.optimizer) is type(keras.optimizers.Adam()), type(model.optimizer)
numbers = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
print(float(numbers[0]), float(abs(numbers[2]).sum()))
"""
    environ = {"KERAS_BACKEND": two_ranks.backend, "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": "/tmp"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = [float(number) for number in ended.stdout.split()]
    assert told == pytest.approx([iterations, gathered], rel=1e-5)
