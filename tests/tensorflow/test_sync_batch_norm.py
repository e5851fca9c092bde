"""Batch normalisation over all ranks, against plain batch normalisation of the joint batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorflow.rank_pool import RankPool


def test_batch_norm_over_all_ranks(two_ranks: RankPool) -> None:
    def values(rank: int) -> Any:
        import numpy
        import tensorflow as tf

        import spark_estimator.tensorflow as hvd

        numbers = numpy.random.default_rng(1).normal(3.0, 2.0, (7, 2, 3)).astype("float32")
        results = tf.constant(numbers[:5] if rank == 0 else numbers[5:])
        weights = numpy.arange(7, dtype="float32")[:, None, None] ** 2 * numbers
        own_weights = tf.constant(weights[:5] if rank == 0 else weights[5:])

        def forth_and_back(layer: Any, inputs: Any, factors: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
                loss = tf.reduce_sum(outputs * factors)
            return outputs, *tape.gradient(loss, [inputs, *layer.trainable_variables])

        layer = hvd.SyncBatchNormalization(momentum=0.9)
        layer.build(results.shape)
        plain = tf.keras.layers.BatchNormalization(momentum=0.9)
        plain.build(results.shape)
        with pytest.raises(ValueError, match="fused=True"):
            hvd.SyncBatchNormalization(fused=True)
        got = tf.function(lambda: forth_and_back(layer, results, own_weights))()
        expected = forth_and_back(plain, tf.constant(numbers), tf.constant(weights))
        for mine, full in zip(got[:2], expected[:2], strict=True):
            numpy.testing.assert_allclose(mine, full[:5] if rank == 0 else full[5:], rtol=1e-3, atol=1e-3)
        for mine, full in zip(got[2:], expected[2:], strict=True):
            numpy.testing.assert_allclose(hvd.allreduce(mine, op=hvd.Sum), full, rtol=1e-3)
        for mine, full in zip(layer.non_trainable_variables, plain.non_trainable_variables, strict=True):
            numpy.testing.assert_allclose(mine, full, rtol=1e-5)
        assert layer(results, training=False).shape == results.shape
        return layer.get_config()["momentum"]

    assert two_ranks.run(values) == [0.9, 0.9]
