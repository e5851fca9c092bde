"""Keras' elastic state and its callbacks; a ``fit`` that loses a rank."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.horovodrun import horovodrun
from tests.keras.conftest import RankPool


@pytest.mark.slow
def test_state_and_callbacks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import keras

        import spark_estimator.keras as hvd
        from tests.keras.training import close, model, share, weights

        with pytest.raises(ValueError, match="is not built"):
            hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
        trained = model(seed=rank)
        trained.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        state = hvd.elastic.KerasState(trained, batch=0, epoch=rank)
        local = weights(trained)
        state.sync()
        begun = weights(trained)
        assert state.epoch == 0 and close(begun, local) == (rank == 0)
        seen: list[Any] = []

        class Watch(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.append((state.epoch, state.batch))

        rows, targets = share(rank, 2, 4)
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
            Watch(),
        ]
        trained.fit(rows, targets, batch_size=4, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        assert seen == [(epoch, batch) for epoch in (0, 1) for batch in (1, 2, 3, 4)]
        assert (state.epoch, state.batch, state._commits) == (2, 0, 4)
        trained.fit(rows, targets, batch_size=4, initial_epoch=2, epochs=3, verbose=0, callbacks=callbacks[1:2])
        assert state.epoch == 3
        ended, steps = weights(trained), int(trained.optimizer.iterations)
        state.restore()
        assert (state.epoch, steps, int(trained.optimizer.iterations)) == (2, 12, 8)
        assert not close(ended, weights(trained)) and not close(begun, weights(trained))

    two_ranks.run(check)


SCRIPT = """
import os
import keras, numpy
import horovod.keras as hvd

hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
rows = numpy.random.default_rng(hvd.rank()).normal(size=(40, 2)).astype("float32")
targets = rows.sum(1, keepdims=True)

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if state.epoch == 1 and batch == 3 and hvd.size() == 2 and hvd.rank() == 1:
            os._exit(9)

@hvd.elastic.run
def train(state):
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state, 100), Dies(),
    ]
    model.fit(rows, targets, batch_size=8, epochs=8 - state.epoch, verbose=0, callbacks=callbacks)

state = hvd.elastic.KerasState(model, epoch=0)
train(state)
print("rank", hvd.rank(), "of", hvd.size(), "epoch", state.epoch, "iterations", int(model.optimizer.iterations),
      "weights", [round(float(w), 2) for w in model.get_weights()[0].reshape(-1)])
"""


def test_a_fit_that_loses_a_rank(two_ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if two_ranks.backend != "jax":
        pytest.skip("once, where the backend makes an error of its own of what the engine raises")
    for name, value in {
        "KERAS_BACKEND": two_ranks.backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
    }.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = horovodrun("-np", "2", "--min-np", "1", sys.executable, str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"rank 0 of 1 epoch (\d+) iterations (\d+) weights \[(\S+), (\S+)\]", done.stdout)
    assert len(ends) == 1, done.stdout + done.stderr
    assert ends[0][:2] == ("8", "40"), "the four steps after the commit were taken back"
    assert all(0.8 < float(weight) < 1.2 for weight in ends[0][2:])
