"""The tape, the optimizers of TensorFlow 1, starting state, batch norm: each against what one process would compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


def test_the_tape(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        first, second = tf.Variable([[1.0, 2.0]]), tf.Variable(3.0)
        table = tf.Variable(tf.ones([3, 2]))
        unused = tf.Variable(1.0)
        sources = {"a": first, "b": [second, unused], "t": table}

        def gradients(**options: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.nn.embedding_lookup(table, [rank, rank])
                loss = tf.reduce_sum(first * second * (rank + 1.0)) + tf.reduce_sum(rows) * (rank + 1.0)
            made = hvd.DistributedGradientTape(tape, **options)
            assert isinstance(made, tf.GradientTape) and made is not tape
            if options.get("scale_local_gradients") is not None:
                made.register_local_source(second)
            return made.gradient(loss, sources)

        def told(got: Any) -> Any:
            assert got["b"][1] is None
            dense = tf.convert_to_tensor(got["t"]).numpy().tolist()
            return got["a"].numpy().tolist(), float(got["b"][0]), dense, type(got["t"]).__name__

        results = []
        for options in (
            {},
            {"op": hvd.Sum},
            {"groups": 2},
            {"groups": [[second, first]]},
            {"compression": hvd.Compression.bf16},
            {"gradient_predivide_factor": 2.0},
            {"sparse_as_dense": True},
            {"scale_local_gradients": True},
            {"scale_local_gradients": False},
        ):
            own = [told(gradients(**options)), told(tf.function(lambda options=options: gradients(**options))())]
            assert own[0] == own[1], options
            results.append(own[0])
        with hvd.DistributedGradientTape(tf.GradientTape()) as around:
            loss = second * (rank + 1.0)
        assert float(around.gradient(loss, second)) == 1.5
        return results

    average = ([[4.5, 4.5]], 4.5, [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]], "IndexedSlices")
    for rank, got in enumerate(two_ranks.run(values)):
        assert got[0] == got[2] == got[3] == got[4] == got[5] == average
        assert got[1] == ([[9.0, 9.0]], 9.0, [[2.0, 2.0], [4.0, 4.0], [0.0, 0.0]], "IndexedSlices")
        assert got[6] == (*average[:3], "EagerTensor")
        assert got[7] == (average[0], 1.5 * (rank + 1), *average[2:])
        assert got[8] == (average[0], 3.0 * (rank + 1), *average[2:])


def test_a_rank_outside_of_the_set_keeps_its_gradients(two_ranks: RankPool) -> None:
    def values(rank: int) -> float:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        only = hvd.add_process_set([1])
        weight = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = weight * (rank + 1.0)
        gradient = hvd.DistributedGradientTape(tape, process_set=only).gradient(loss, weight)
        hvd.barrier()
        return float(gradient)

    assert two_ranks.run(values) == [1.0, 2.0]


@pytest.mark.parametrize("passes", [1, 2])
def test_an_optimizer_of_tensorflow_1(two_ranks: RankPool, passes: int) -> None:
    def trained(rank: int, passes: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("weight", initializer=[1.0, 2.0 + rank])
            data = v1.placeholder(tf.float32, [2])
            step = v1.train.get_or_create_global_step()
            own = v1.train.MomentumOptimizer(0.5, 0.0)
            optimizer = hvd.DistributedOptimizer(
                own, backward_passes_per_step=passes, average_aggregated_gradients=passes > 1
            )
            assert isinstance(optimizer, v1.train.Optimizer)
            train = optimizer.minimize(tf.reduce_sum(weight * data), global_step=step)
            start = hvd.broadcast_global_variables(0)
            session.run(v1.global_variables_initializer())
            session.run(start)
            seen = []
            for number in range(4):
                session.run(train, {data: [number + rank, 2.0 * rank]})
                seen.append([session.run(weight).tolist(), int(session.run(step))])
            assert optimizer.get_slot_names() == ["momentum"]
            assert optimizer.get_slot(weight, "momentum") is own.get_slot(weight, "momentum")
            return seen

    # The average of the ranks' gradients is [number + 0.5, 1], half of which is taken off each time.
    each_time = [[[0.75, 1.5], 1], [[0.0, 1.0], 2], [[-1.25, 0.5], 3], [[-3.0, 0.0], 4]]
    each_second = [[[1.0, 2.0], 0], [[0.5, 1.5], 1], [[0.5, 1.5], 1], [[-1.0, 1.0], 2]]
    assert two_ranks.run(trained, passes) == [each_time if passes == 1 else each_second] * 2


def test_an_eager_optimizer_of_tensorflow_1(two_ranks: RankPool) -> None:
    def trained(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        weight, own = tf.Variable(1.0), tf.Variable(1.0)
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        optimizer.register_local_var(own)
        seen = []
        for _ in range(4):
            optimizer.minimize(lambda: (weight + own) * (rank + 1.0), var_list=[weight, own])
            seen += [float(weight), float(own)]
        return seen

    for rank, seen in enumerate(two_ranks.run(trained)):
        local = rank + 1.0  # two passes of (rank + 1), divided by two ranks
        assert seen == [1.0, 1.0, -2.0, 1 - local, -2.0, 1 - local, -5.0, 1 - 2 * local]


def test_starting_state(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        types = ("float32", "int64", "uint32", "complex64", "bool", "bfloat16")
        variables = [tf.Variable(tf.cast(tf.fill([2, 1], rank), name)) for name in types]
        variables.append(tf.Variable(tf.zeros([0, 3])))
        hvd.broadcast_variables(variables, root_rank=1)
        assert all(numpy.all(numpy.asarray(each) == 1) for each in variables[:-1])
        layer = tf.keras.layers.Dense(2, bias_initializer="random_normal")
        layer.build((None, 3))
        layer.bias.assign([rank, rank])
        hvd.broadcast_variables(layer.variables, root_rank=0)
        back = hvd.broadcast_([variables[0]], 0)
        assert back[0] is variables[0]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.broadcast_variables([tf.Variable(tf.zeros([2 + rank]))], 0)
        with pytest.raises(ValueError, match="a variable is needed, not a int"):
            hvd.broadcast_variables([1], 0)
        return layer.bias.numpy().tolist(), str(caught.value)

    for bias, text in two_ranks.run(values):
        assert bias == [0.0, 0.0]
        assert "Rank 0 has: variable 0: shape (2,), float32. Rank 1 has: variable 0: shape (3,), float32." in text


SCRIPT = (Path(__file__).parent / "classic_script.py").read_text()


def test_the_classic_script(two_ranks: RankPool, tmp_path: Path) -> None:
    def trained(rank: int, script: str, folder: str) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        names: dict[str, Any] = {"hvd": hvd}
        with tf.Graph().as_default():
            exec(compile(script.replace("import spark_estimator.tensorflow as hvd", ""), "script", "exec"), names)
            return names["main"](folder)

    (weights, step), (_, other_step) = two_ranks.run(trained, SCRIPT, str(tmp_path))
    assert step == other_step
    assert 200 // 2 - 1 <= step <= 200 // 2
    assert [round(weight, 1) for weight in weights] == [2.0, -1.0]
    assert list(tmp_path.glob("model.ckpt-*.index")), "rank 0 writes checkpoints"
    # Taken up where it stopped, which only rank 0 has been told.
    (weights, step), again = two_ranks.run(trained, SCRIPT, str(tmp_path))
    assert again == (weights, step) and step == 200 // 2


def test_batch_norm_over_all_ranks(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        numbers = numpy.random.default_rng(1).normal(3.0, 2.0, (7, 2, 3)).astype("float32")
        own = tf.constant(numbers[:5] if rank == 0 else numbers[5:])
        weights = numpy.arange(7, dtype="float32")[:, None, None] ** 2 * numbers
        own_weights = tf.constant(weights[:5] if rank == 0 else weights[5:])

        def forth_and_back(layer: Any, inputs: Any, factors: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
                loss = tf.reduce_sum(outputs * factors)
            return outputs, *tape.gradient(loss, [inputs, *layer.trainable_variables])

        layer = hvd.SyncBatchNormalization(momentum=0.9)
        layer.build(own.shape)
        plain = tf.keras.layers.BatchNormalization(momentum=0.9)
        plain.build(own.shape)
        with pytest.raises(ValueError, match="fused=True"):
            hvd.SyncBatchNormalization(fused=True)
        got = tf.function(lambda: forth_and_back(layer, own, own_weights))()
        wanted = forth_and_back(plain, tf.constant(numbers), tf.constant(weights))
        for mine, whole in zip(got[:2], wanted[:2], strict=True):
            numpy.testing.assert_allclose(mine, whole[:5] if rank == 0 else whole[5:], rtol=1e-3, atol=1e-3)
        for mine, whole in zip(got[2:], wanted[2:], strict=True):
            numpy.testing.assert_allclose(hvd.allreduce(mine, op=hvd.Sum), whole, rtol=1e-3)
        for mine, whole in zip(layer.non_trainable_variables, plain.non_trainable_variables, strict=True):
            numpy.testing.assert_allclose(mine, whole, rtol=1e-5)
        assert layer(own, training=False).shape == own.shape
        return layer.get_config()["momentum"]

    assert two_ranks.run(values) == [0.9, 0.9]


def test_layers_of_one_rank_and_optimizers_of_others(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        layer.build((None, 2))
        shared = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 2])) * shared) * (rank + 1.0)
        made = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
        own, common = made.gradient(loss, [layer.kernel, shared])
        with pytest.raises(ValueError, match="holds Keras layers"):
            hvd.PartialDistributedGradientTape(tape, local_layers=[1])
        with pytest.raises(ValueError, match="average_aggregated_gradients"):
            plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            hvd.DistributedOptimizer(plain, op=hvd.Adasum, average_aggregated_gradients=True)
        with pytest.raises(ValueError, match="backward_passes_per_step=0"):
            hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
        for arguments, text in (
            ({"op": hvd.Max}, "reduced by hvd"),
            ({"gradient_predivide_factor": 0}, "greater than 0"),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, r"use op=hvd\.Average"),
            ({"groups": [[shared], [shared]]}, "a variable twice"),
            ({"groups": 0.5}, "an integer greater than 0"),
            ({"process_set": 1}, "must be a ProcessSet"),
        ):
            with pytest.raises(ValueError, match=text):
                hvd.DistributedGradientTape(tape, **arguments)
        return tf.reshape(own, [-1]).numpy().tolist(), float(common)

    assert two_ranks.run(values) == [([0.5, 0.5], 3.0), ([1.0, 1.0], 3.0)]


def test_a_tape_s_gradients_go_as_one_on_one_host_and_in_buckets_between_hosts(two_ranks: RankPool) -> None:
    def nodes(rank: int) -> list[int]:
        import os
        from unittest import mock

        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from spark_estimator.collectives import context

        os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"] = "800"
        hvd.shutdown()
        hvd.init()
        del os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"]
        variables = [tf.Variable(tf.ones(100)) for _ in range(6)]
        found = []
        for hosts in (1, 2):  # the ranks are on one host; the graph is made as if they were not

            @tf.function
            def step() -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.reduce_sum(each * (rank + 1.0)) for each in variables])
                return hvd.DistributedGradientTape(tape).gradient(loss, variables)

            with mock.patch.object(context, "cross_size", lambda hosts=hosts: hosts):
                operations = step.get_concrete_function().graph.get_operations()
            assert all((gradient.numpy() == 1.5).all() for gradient in step())
            found.append([node.type for node in operations].count("SparkEstimatorAllreduce"))
        return found

    assert two_ranks.run(nodes) == [[1, 3], [1, 3]]
