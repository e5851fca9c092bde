"""`DistributedGradientTape`: its gradients are what one process would compute from all ranks' losses."""

from __future__ import annotations

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
            wrapped = hvd.DistributedGradientTape(tape, **options)
            assert isinstance(wrapped, tf.GradientTape) and wrapped is not tape
            if options.get("scale_local_gradients") is not None:
                wrapped.register_local_source(second)
            return wrapped.gradient(loss, sources)

        def plain(got: Any) -> Any:
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
            eager = plain(gradients(**options))
            assert eager == plain(tf.function(lambda options=options: gradients(**options))()), options
            results.append(eager)
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


def test_layers_of_one_rank(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        layer.build((None, 2))
        shared = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 2])) * shared) * (rank + 1.0)
        wrapped = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
        results, common = wrapped.gradient(loss, [layer.kernel, shared])
        return tf.reshape(results, [-1]).numpy().tolist(), float(common)

    assert two_ranks.run(values) == [([0.5, 0.5], 3.0), ([1.0, 1.0], 3.0)]


def test_arguments_that_are_refused() -> None:
    import tensorflow as tf

    import spark_estimator.tensorflow as hvd

    with pytest.raises(ValueError, match="GradientTape is needed, not "):
        hvd.DistributedGradientTape(1)
    with pytest.raises(ValueError, match="must hold Keras layers, not 1"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])
    with pytest.raises(ValueError, match="must be hvd"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max)


def test_gradients_of_local_sources_apart(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        local_variable, shared = tf.Variable(1.0), tf.Variable(2.0)
        with tf.GradientTape(persistent=True) as tape:
            loss = (local_variable + shared) * (1.0 + rank)
        wrapped = hvd.DistributedGradientTape(tape)
        wrapped.register_local_source(local_variable)
        local, others = wrapped.get_local_and_global_gradients(loss, [local_variable, shared])
        assert local[0][0] is local_variable and others[0][0] is shared
        [again] = wrapped.gradient(loss, [shared], None, True)  # Horovod's fourth argument
        return [float(local[0][1]), float(others[0][1]), float(again)]

    assert two_ranks.run(values) == [[0.5, 1.5, 1.5], [1.0, 1.5, 1.5]]
