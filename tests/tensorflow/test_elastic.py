"""TensorFlow's elastic states: what is kept, restored and copied; a training that loses a rank."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.horovodrun import horovodrun
from tests.tensorflow.rank_pool import QUIET, RankPool


def test_states(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        weight = tf.Variable([1.0 + rank])
        state = hvd.elastic.TensorFlowState([weight], batch=rank)
        weight.assign([5.0])
        state.batch = 7
        state.restore()
        seen = [float(weight[0]), state.batch]
        state.sync()
        seen += [float(weight[0]), state.batch]
        weight.assign([9.0])
        state.restore()
        seen.append(float(weight[0]))

        model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.Adam(0.1 * (rank + 1))
        keras_state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=rank)
        optimizer.apply_gradients([(each * 0 + 1, each) for each in model.trainable_variables])
        keras_state.sync()
        keras_state.save()
        steps = int(optimizer.iterations)
        optimizer.apply_gradients([(each * 0 + 1, each) for each in model.trainable_variables])
        keras_state.restore()
        assert keras_state.model is model and keras_state.optimizer is optimizer
        seen += [steps, int(optimizer.iterations), round(float(optimizer.learning_rate), 4), keras_state.epoch]
        assert len({round(float(each), 6) for each in hvd.allgather(tf.reshape(model.weights[0], [1, -1]))[:, 0]}) == 1
        with pytest.raises(ValueError, match="build the model first"):
            hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
        with pytest.raises(ValueError, match="pass variables, or a session"):
            hvd.elastic.TensorFlowState()

        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            v1.get_variable("w", initializer=[float(rank)], use_resource=False)
            session.run(v1.global_variables_initializer())
            in_session = hvd.elastic.TensorFlowState(session=session)
            in_session.sync()
            seen.append(float(session.run("w:0")[0]))
        return seen

    for rank, seen in enumerate(two_ranks.run(values)):
        assert seen == [1.0 + rank, rank, 1.0, 0, 1.0, 1, 1, 0.1, 0, 0.0]


SCRIPT = """
import os, sys
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.05)

@tf.function
def step(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs) - tf.reduce_sum(inputs, 1, keepdims=True)))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

@hvd.elastic.run
def train(state):
    while state.batch < 60:
        if state.batch == 15 and hvd.size() == 2 and hvd.rank() == 1:
            os._exit(9)
        step(tf.random.normal([8, 2]))
        state.batch += 1
        if state.batch % 10 == 0:
            state.commit()

state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
train(state)
print("rank", hvd.rank(), "of", hvd.size(), "iterations", int(optimizer.iterations), "weights",
      [round(float(w), 2) for w in tf.reshape(model.weights[0], [-1])])
"""


@pytest.mark.slow
def test_a_training_that_loses_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = horovodrun("-np", "2", "--min-np", "1", sys.executable, str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"rank 0 of 1 iterations (\d+) weights \[(\S+), (\S+)\]", done.stdout)
    assert len(ends) == 1, done.stdout + done.stderr
    assert ends[0][0] == "60", "the ten steps after the commit were taken back"
    assert all(0.8 < float(weight) < 1.2 for weight in ends[0][1:])
