"""A rank that takes training steps in TensorFlow and Keras on commands of ``benchmarks.training``.

Variants: ``tf_none``, without communication; ``tf_ours``, with ``DistributedGradientTape``; ``tf_mwms``, TensorFlow's
``MultiWorkerMirroredStrategy`` (in separate ranks, because it configures the whole process); and ``keras_none`` and
``keras_ours``, with Keras' ``train_on_batch``. Each step is compiled by ``tf.function``.

The model has ResNet-50's parameters and almost no computation, as ``training_rank.GradientShapes``: the loss is
``(mean(x) * weighted sum of all parameters) ** 2``, so that the correct values follow from one number per parameter.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from benchmarks.protocol import answer_commands
from benchmarks.training_steps import CHECKED_STEPS, TOLERANCE, Answers, resnet50_shapes, timed
from spark_estimator.collectives import context
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.collectives.ops import barrier
from spark_estimator.launch.worker.worker import bind_to_parent

_START = 0.01
_LEARNING_RATE = 1e-6


class Training:
    """The model trained with one variant, ready to take steps."""

    def __init__(self, variant: str) -> None:
        make = {
            "tf_none": _alone,
            "tf_ours": _with_tape,
            "tf_mwms": _mirrored,
            "keras_none": _keras,
            "keras_ours": _keras,
        }[variant]
        self._take, self.values = make(variant)
        self._inputs = inputs_of(context.rank(), 0)

    def step(self, inputs: Any = None) -> None:
        """Takes one training step on `inputs`; default: the same inputs at each call."""
        self._take(self._inputs if inputs is None else inputs)


Made = tuple[Callable[[Any], Any], Callable[[], list[Any]]]


def inputs_of(rank: int, step: int) -> Any:
    """The batch of a rank for a step, [1, 1]."""
    return numpy.random.default_rng([rank, step]).normal(1.0, 0.1, (1, 1)).astype(numpy.float32)


def _variables() -> list[Any]:
    import tensorflow as tf

    return [tf.Variable(tf.fill(shape, tf.constant(_START))) for shape in resnet50_shapes()]


def _weights() -> list[float]:
    """The weight of each parameter in the sum.

    Without weights, all gradients of one shape would be equal, and TensorFlow would compute only one of them.
    """
    count = len(resnet50_shapes())
    return [1.0 + number / count for number in range(count)]


def _loss(inputs: Any, variables: list[Any]) -> Any:
    import tensorflow as tf

    pairs = zip(_weights(), variables, strict=True)
    total = tf.add_n([weight * tf.reduce_sum(variable) for weight, variable in pairs])
    return tf.square(tf.reduce_mean(inputs) * total)


def _step_of(variables: list[Any], tape_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import tensorflow as tf

    optimizer = tf.compat.v1.train.GradientDescentOptimizer(_LEARNING_RATE)

    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = _loss(inputs, variables)
        gradients = tape_of(tape).gradient(loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return step


def _compiled(step: Callable[[Any], Any], variables: list[Any]) -> Made:
    import tensorflow as tf

    function = tf.function(step)
    return lambda inputs: function(tf.constant(inputs)), lambda: [variable.numpy() for variable in variables]


def _alone(variant: str) -> Made:
    variables = _variables()
    return _compiled(_step_of(variables, lambda tape: tape), variables)


def _with_tape(variant: str) -> Made:
    import spark_estimator.tensorflow as hvd

    variables = _variables()
    return _compiled(_step_of(variables, hvd.DistributedGradientTape), variables)


@functools.cache
def _strategy() -> Any:
    """The strategy; cached, because its servers can start only once in a process."""
    with socket.socket() as probe:  # each rank's server needs a free port
        probe.bind(("127.0.0.1", 0))
        addresses = allgather_object(f"127.0.0.1:{probe.getsockname()[1]}")
    task = {"type": "worker", "index": context.rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _mirrored(variant: str) -> Made:
    strategy = _strategy()
    with strategy.scope():
        variables = _variables()
        replica_step = _step_of(variables, lambda tape: tape)
    ranks = context.size()

    def step(inputs: Any) -> None:
        # The strategy sums gradients instead of averaging them, so the loss of each rank is divided by their number.
        strategy.run(replica_step, args=(inputs / math.sqrt(ranks),))

    return _compiled(step, variables)


def _keras(variant: str) -> Made:
    import keras

    class Model(keras.Model):
        def build(self, shape: Any) -> None:
            start = keras.initializers.Constant(_START)
            self.all = [self.add_weight(shape=shape, initializer=start) for shape in resnet50_shapes()]

        def call(self, inputs: Any) -> Any:
            pairs = zip(_weights(), self.all, strict=True)
            total = sum(weight * keras.ops.sum(variable) for weight, variable in pairs)
            return keras.ops.reshape(keras.ops.mean(inputs) * total, (1, 1))

    model = Model()
    model.build((1, 1))
    optimizer = keras.optimizers.SGD(_LEARNING_RATE)
    if variant == "keras_ours":
        import spark_estimator.keras as hvd

        optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss="mean_squared_error", jit_compile=False)
    label = numpy.zeros((1, 1), numpy.float32)
    return lambda inputs: model.train_on_batch(inputs, label), lambda: [w.numpy() for w in model.all]


def _check(variant: str, name: str) -> str:
    if variant.endswith("none"):
        return "ok"
    training = Training(variant)
    for step in range(CHECKED_STEPS):
        training.step(inputs_of(context.rank(), step))
    weights = numpy.array(_weights())
    counts = numpy.array([math.prod(shape) for shape in resnet50_shapes()])
    values = numpy.full(len(counts), _START)
    for step in range(CHECKED_STEPS):
        means = [float(inputs_of(rank, step).mean()) for rank in range(context.size())]
        total = (weights * counts * values).sum()
        values -= _LEARNING_RATE * sum(2 * mean**2 * total for mean in means) / context.size() * weights
    for number, (actual, correct) in enumerate(zip(training.values(), values, strict=True)):
        if not numpy.allclose(actual, correct, rtol=TOLERANCE, atol=TOLERANCE * abs(correct)):
            return f"wrong values on rank {context.rank()}, parameter {number}: {actual.flat[0]} instead of {correct}"
    return "ok"


def _block(training: Training, name: str, samples: int) -> list[float]:
    return timed(training.step, samples, barrier)


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path, help="the socket on which the controller listens")
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    bind_to_parent(options.parent)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # One compute thread, as in PyTorch's ranks; TensorFlow needs another one to wait in collectives.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    context.init()
    answers = Answers(lambda variant, name: Training(variant), _check, _block)
    answer_commands(options.socket, context.rank(), context.size(), answers.answer)
    context.shutdown()


if __name__ == "__main__":
    main()
