"""Keras 2 (``tf_keras``): its optimizers, models, callbacks and files, as ``tf.keras`` and beside Keras 3."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("tf_keras") is None:
    pytest.skip("tf_keras is not installed here", allow_module_level=True)

from tests import rank_pool
from tests.keras.conftest import _in_a_job
from tests.tensorflow.rank_pool import QUIET

pytestmark = pytest.mark.timeout(300)


def in_a_job(function: Any, rank: int, *args: Any) -> Any:
    import tensorflow as tf

    import spark_estimator.keras as hvd

    hvd.init(process_sets="dynamic")
    try:
        tf.keras.utils.set_random_seed(1 + rank)
        return function(rank, *args)
    finally:
        hvd.shutdown()


@pytest.fixture(scope="module")
def as_tf_keras() -> Iterator[rank_pool.RankPool]:
    """Ranks in which ``tf.keras`` is Keras 2."""
    pool = rank_pool.RankPool(2, in_a_job, QUIET | {"TF_USE_LEGACY_KERAS": "1"})
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def beside_keras_3() -> Iterator[rank_pool.RankPool]:
    """Ranks in which ``tf.keras`` is Keras 3, and a program imports ``tf_keras``."""
    pool = rank_pool.RankPool(2, _in_a_job, QUIET | {"KERAS_BACKEND": "tensorflow"})
    yield pool
    pool.close()


def test_a_script_of_its_time(as_tf_keras: rank_pool.RankPool, tmp_path: Path) -> None:
    def train(rank: int, folder: str, legacy: bool) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow.keras as hvd

        kinds = tf.keras.optimizers.legacy if legacy else tf.keras.optimizers
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(4, activation="relu", input_shape=(3,)),
                tf.keras.layers.Dense(2, activation="softmax"),
            ]
        )
        opt = hvd.DistributedOptimizer(kinds.Adam(0.001 * hvd.size()))
        model.compile(
            loss="sparse_categorical_crossentropy",
            optimizer=opt,
            metrics=["accuracy"],
            experimental_run_tf_function=False,
        )
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=2),
        ]
        file = f"{folder}/{legacy}.h5"
        if rank == 0:
            callbacks.append(tf.keras.callbacks.ModelCheckpoint(file))
        x = numpy.random.RandomState(rank).rand(16, 3)
        history = model.fit(x, (x.sum(1) > 1.5).astype("int64"), batch_size=8, epochs=3, callbacks=callbacks, verbose=0)
        values = [value.tolist() for value in [*model.get_weights(), *(v.numpy() for v in opt.variables())]]
        hvd.allreduce(0.0)  # the file is there
        loaded = hvd.load_model(file)
        with pytest.raises(ValueError, match="already a DistributedOptimizer"):
            hvd.DistributedOptimizer(loaded.optimizer)
        assert type(loaded.optimizer).__mro__[1] is kinds.Adam and int(loaded.optimizer.iterations) == 6
        plain = tf.keras.models.load_model(file)  # the file has no trace of this package
        assert type(plain.optimizer) is kinds.Adam
        assert [v.numpy().tolist() for v in plain.optimizer.variables()] == values[4:]
        return values, [float(rate) for rate in history.history["lr"]]

    for legacy in (False, True):
        (first, rates), (second, _) = as_tf_keras.run(train, str(tmp_path), legacy, timeout=200)
        assert first == second
        assert rates == pytest.approx([0.0015, 0.002, 0.002])


def test_the_mean_is_exact_with_passes_rows_and_momentum(as_tf_keras: rank_pool.RankPool) -> None:
    def train(rank: int, legacy: bool) -> None:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow.keras as hvd

        kinds = tf.keras.optimizers.legacy if legacy else tf.keras.optimizers
        for passes, average, sparse in ((1, False, False), (1, False, True), (2, False, True), (2, True, True)):
            layers = [tf.keras.layers.Embedding(3, 1, input_length=1), tf.keras.layers.Flatten()]
            model = tf.keras.Sequential(layers)
            model.set_weights([numpy.zeros((3, 1))])
            optimizer = hvd.DistributedOptimizer(
                kinds.SGD(1.0),
                backward_passes_per_step=passes,
                average_aggregated_gradients=average,
                sparse_as_dense=sparse,
                compression=hvd.Compression.fp16,
            )
            # as a graph where that has branches
            model.compile(optimizer, "mse", run_eagerly=passes == 1 or average)
            for _ in range(2):
                model.train_on_batch(numpy.array([[rank]]), numpy.array([[1.0]]))
            # each rank has a different row, with the gradient -2 (y - w), of which the ranks take the mean
            once = [[1.0], [1.0], [0.0]]
            expected = {(1, False): once, (2, False): [[2.0], [2.0], [0.0]], (2, True): once}[passes, average]
            assert model.get_weights()[0].tolist() == expected, (legacy, passes, average, sparse)
            assert int(optimizer.iterations) == 2
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(1,))])
        model.compile(hvd.DistributedOptimizer(kinds.SGD(1.0, momentum=0.5)), "mse", run_eagerly=True)
        schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 0.5**epoch)
        model.set_weights([numpy.zeros((1, 1))])
        ones = numpy.ones((1, 1))
        history = model.fit(ones, ones * (1 + rank), epochs=2, verbose=0, callbacks=[schedule])
        # the target is 1.5 in the mean: a step of 3; then half of that, halved with the rate, and 0.5 * -3
        assert model.get_weights()[0].tolist() == [[3.0 + 0.75 - 1.5]]
        assert history.history["lr"] == [1.0, 0.5]

    for legacy in (False, True):
        as_tf_keras.run(train, legacy, timeout=200)


@pytest.mark.slow
def test_loss_scales_loops_states_and_local_layers(beside_keras_3: rank_pool.RankPool, tmp_path: Path) -> None:
    def train(rank: int, folder: str) -> Any:
        import numpy
        import tensorflow as tf
        import tf_keras

        import spark_estimator.keras as hvd
        import spark_estimator.tensorflow as hvt

        result: list[Any] = []
        rows = numpy.random.RandomState(rank).rand(8, 3), numpy.ones((8, 1))
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
        model.set_weights([numpy.ones((3, 1)), numpy.zeros(1)])
        scaler = tf_keras.mixed_precision.LossScaleOptimizer
        for kinds in (tf_keras.optimizers, tf_keras.optimizers.legacy):
            for optimizer in (
                scaler(hvd.DistributedOptimizer(kinds.SGD(0.1))),
                hvd.DistributedOptimizer(scaler(kinds.SGD(0.1))),
            ):
                model.compile(optimizer, "mse", run_eagerly=True)
                model.fit(*rows, batch_size=8, verbose=0)
                result.append(model.get_weights()[0].tolist())
        plain = tf_keras.optimizers.Adam(0.1)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(rows[0]) - rows[1]) ** 2)
            tape = hvt.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            plain.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        step()
        hvt.broadcast_variables(plain.variables(), root_rank=0)
        step()
        result.append(model.get_weights()[0].tolist())
        saved = tf.train.Checkpoint(model=model, optimizer=plain)
        saved.restore(saved.save(f"{folder}/{rank}")).assert_existing_objects_matched()

        model.set_weights([numpy.full((3, 1), rank), numpy.zeros(1)])
        state = hvd.elastic.KerasState(model, plain, batch=0, epoch=0)
        state.sync()
        model.set_weights([numpy.full((3, 1), 7), numpy.zeros(1)])
        state.restore()
        result.append(model.get_weights()[0].tolist())
        model.compile(hvd.DistributedOptimizer(plain), "mse", run_eagerly=True)
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ]
        model.fit(*rows, batch_size=4, verbose=0, callbacks=callbacks)
        assert (state.epoch, state.batch) == (1, 0)
        again = hvt.elastic.TensorFlowKerasState(model)
        again.sync()
        again.restore()

        local = hvd.PartialDistributedOptimizer(tf_keras.optimizers.SGD(1.0), local_layers=model.layers[-1])
        model.compile(local, "mse", run_eagerly=True)
        model.set_weights([numpy.zeros((3, 1)), numpy.zeros(1)])
        model.train_on_batch(numpy.ones((1, 3)), numpy.full((1, 1), float(rank)))
        assert model.get_weights()[1].tolist() == [float(rank)]  # its own gradient of -2, divided by the ranks
        return result

    first, second = beside_keras_3.run(train, str(tmp_path), timeout=200)
    assert first == second and first[-1] == [[0.0]] * 3


def test_either_keras_in_one_process(beside_keras_3: rank_pool.RankPool, tmp_path: Path) -> None:
    def train(rank: int, folder: str) -> Any:
        import keras
        import numpy
        import tf_keras

        import spark_estimator.keras as hvd

        result = []
        for kind in (tf_keras, keras):
            kind.utils.set_random_seed(1 + rank)
            model = kind.Sequential([kind.layers.Dense(1)])
            model.build((None, 3))
            model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(0.1)), kind.losses.MeanSquaredError())
            model.run_eagerly = True
            stops_on_rank_0 = kind.callbacks.EarlyStopping("loss", patience=0, min_delta=0 if rank else 100)
            callbacks = [
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                stops_on_rank_0,
            ]
            x = numpy.random.RandomState(rank).rand(8, 3)
            history = model.fit(x, x.sum(1), batch_size=4, epochs=5, verbose=0, callbacks=callbacks)
            result.append(([value.tolist() for value in model.get_weights()], history.history["loss"]))
            file = f"{folder}/{kind.__name__}{rank}.h5"
            model.save(file)
            loaded = hvd.load_model(file)
            assert type(loaded).__module__.startswith(kind.__name__ + ".")
        return result

    first, second = beside_keras_3.run(train, str(tmp_path), timeout=200)
    assert first == second and [len(losses) for _, losses in first] == [2, 2]


@pytest.mark.slow
def test_a_graph_of_tensorflow_1() -> None:
    from tests.ranks import run_ranks

    def train(rank: int) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.keras as hvd

        tf.compat.v1.disable_eager_execution()
        hvd.init()
        tf.keras.utils.set_random_seed(1 + rank)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.2, momentum=0.9)), "mse")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.2, 2),
        ]
        x = numpy.random.RandomState(rank).rand(16, 3)
        history = model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
        assert float(hvd.allreduce(1.0 + rank)) == 1.5
        hvd.broadcast_global_variables(0)
        result = [value.tolist() for value in model.get_weights()], [float(loss) for loss in history.history["loss"]]
        hvd.shutdown()
        return result

    first, second = run_ranks(2, train, 200, environ=QUIET | {"TF_USE_LEGACY_KERAS": "1"})
    assert first == second
