"""Ranks train equally many batches and stop after the same epoch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras.conftest import RankPool


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
    """Keras would leave the epoch at once, which the other rank continues."""

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
            compiled_model = model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
            compiled_model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
            return compiled_model

        begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        number = 6 if rank == shorter else 8
        lines = [f"Rank {each} has: {6 if each == shorter else 8} batches in epoch 1" for each in range(2)]
        for first in (begin, hvd.callbacks.MetricAverageCallback()):
            for steps_per_epoch in (None, 8):
                with pytest.raises(MismatchError, match=r"give model\.fit a steps_per_epoch=.*" + r"\. ".join(lines)):
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
