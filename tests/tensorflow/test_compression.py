"""The compressors of the TensorFlow binding."""

from __future__ import annotations

import pytest
import tensorflow as tf

import spark_estimator.tensorflow as hvd
from spark_estimator.tensorflow import compression
from tests.support.compression_family import check_family, check_int8
from tests.tensorflow.rank_pool import RankPool


def test_the_family() -> None:
    integers = tf.constant([1, 2], dtype=tf.int32)
    floats = tf.constant([1.0, -0.5])
    check_family(compression, floats, integers, lambda tensor: tensor.dtype.name, lambda tensor: tensor.numpy())
    check_int8(compression, floats)


@pytest.mark.slow
def test_int8_loses_nothing_over_steps(two_ranks: RankPool) -> None:
    """Eagerly and in graphs, for each variable separately, while small variables are exact."""

    def check(rank: int) -> None:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd
        from tests.support.by_sockets import by_sockets

        weights, bias = tf.Variable(tf.zeros([150, 100])), tf.Variable(tf.zeros([100]))
        other = tf.Variable(tf.zeros([150, 100]))

        def gradients(factors: tf.Tensor, variable: tf.Variable) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * factors) + tf.reduce_sum(bias * (rank + 1.0))
            tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.int8)
            averages: list[tf.Tensor] = tape.gradient(loss, [variable, bias])
            return averages

        with by_sockets():
            for step in (gradients, tf.function(gradients)):
                for variable in (weights, other):
                    received = expected = numpy.zeros([150, 100])
                    previous = numpy.zeros([150, 100])
                    for number in range(8):
                        both = [
                            numpy.random.default_rng(10 * number + each).standard_normal([150, 100]) for each in (0, 1)
                        ]
                        average, of_bias = step(tf.constant(both[rank], tf.float32), variable)
                        assert of_bias.numpy().tolist() == [1.5] * 100
                        assert numpy.abs(average.numpy() - sum(both) / 2).max() < 0.05
                        previous, received = received, received + average.numpy()
                        expected = expected + sum(both) / 2
                    error = numpy.abs(received - expected).max()
                    assert 1e-4 < error < 0.03, error  # of eight steps as of one
                    assert not numpy.array_equal(previous, received)
            gathered = hvd.allgather(tf.reshape(tf.constant(received, tf.float64), [1, -1])).numpy()
            assert numpy.array_equal(gathered[0], gathered[1])

    two_ranks.run(check)


def test_int8_not_with_adasum() -> None:
    with pytest.raises(ValueError, match=r"hvd\.Compression\.int8 is not supported with op=hvd\.Adasum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, compression=hvd.Compression.int8)
