"""Optimizers of TensorFlow 1 on several ranks: each step against what one process would compute."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


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
            momentum = v1.train.MomentumOptimizer(0.5, 0.0)
            optimizer = hvd.DistributedOptimizer(
                momentum, backward_passes_per_step=passes, average_aggregated_gradients=passes > 1
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
            assert optimizer.get_slot(weight, "momentum") is momentum.get_slot(weight, "momentum")
            return seen

    # The average of the ranks' gradients is [number + 0.5, 1], half of which is subtracted each time.
    each_time = [[[0.75, 1.5], 1], [[0.0, 1.0], 2], [[-1.25, 0.5], 3], [[-3.0, 0.0], 4]]
    each_second = [[[1.0, 2.0], 0], [[0.5, 1.5], 1], [[0.5, 1.5], 1], [[-1.0, 1.0], 2]]
    assert two_ranks.run(trained, passes) == [each_time if passes == 1 else each_second] * 2


def test_an_eager_optimizer_of_tensorflow_1(two_ranks: RankPool) -> None:
    def trained(rank: int) -> list[float]:
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        weight, local = tf.Variable(1.0), tf.Variable(1.0)
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
        optimizer.register_local_var(local)
        seen = []
        for _ in range(4):
            optimizer.minimize(lambda: (weight + local) * (rank + 1.0), var_list=[weight, local])
            seen += [float(weight), float(local)]
        return seen

    for rank, seen in enumerate(two_ranks.run(trained)):
        local = rank + 1.0  # two passes of (rank + 1), divided by two ranks
        assert seen == [1.0, 1.0, -2.0, 1 - local, -2.0, 1 - local, -5.0, 1 - 2 * local]


def test_arguments_that_are_refused() -> None:
    import tensorflow as tf

    import spark_estimator.tensorflow as hvd

    plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(plain, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="or of Keras is needed, not "):
        hvd.DistributedOptimizer(1)
