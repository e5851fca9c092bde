"""Batch normalisation over the joint batch of all ranks, for batches that are too small for their own statistics."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator._native import ReduceOp
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import describe_call
from spark_estimator.keras.importing import uses_keras_2
from spark_estimator.tensorflow.questions import ask_rank, ask_size
from spark_estimator.tensorflow.reducing import TensorReduction, run_allreduce

_KIND = "sync_batch_norm"


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc,unused-ignore]
    """``tf.keras.layers.BatchNormalization`` with statistics over the batches of all ranks.

    Training is collective, forward and backward: all ranks of the set call it in the same order. Their batches may have
    different sizes. Elsewhere, and on one rank, it is plain batch normalisation.

    Args:
        fused: accepted for Horovod's signature; True raises ValueError.
        process_set: over whose ranks; by default all.
        kwargs: as for ``tf.keras.layers.BatchNormalization``.
    """

    def __init__(self, fused: bool = False, *, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(f"{describe_call('SyncBatchNormalization')}: fused=True is not supported across ranks.")
        if uses_keras_2():  # whose layer otherwise uses a special kernel for its moments
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs: Any, *arguments: Any, mask: Any = None, **keywords: Any) -> tuple[Any, Any]:
        """Return [channels] mean and biased variance of all ranks' values. Keras 3's arguments: inputs, mask."""
        if uses_keras_2():
            if mask is not None:
                keywords["mask"] = mask
        elif arguments:
            [mask] = arguments
        else:
            arguments = (mask,)
        mean, variance = super()._moments(inputs, *arguments, **keywords)
        channels = tf.size(mean)
        values = tf.size(inputs) // tf.maximum(channels, 1)
        count = tf.cast(values if mask is None else tf.reduce_sum(tf.cast(mask, tf.int32)), mean.dtype)
        # An empty batch has no mean; it counts for nothing.
        mean, variance = (tf.where(count > 0, moment, tf.zeros_like(moment)) for moment in (mean, variance))
        moments = tf.concat([[count], tf.reshape(mean, [-1]), tf.reshape(variance, [-1])], 0)[tf.newaxis]
        # Gathered by a sum, whose gradient is a sum as well: that of an allgather would be an average.
        ranks = ask_size(self._process_set, tf.int32)
        rank = tf.reshape(ask_rank(self._process_set), [1, 1])
        rows = tf.scatter_nd(rank, moments, tf.stack([ranks, tf.shape(moments)[1]]))
        [gathered] = run_allreduce([rows], _KIND, None, TensorReduction(ReduceOp.SUM, process_set=self._process_set))
        # Ranks' moments are put together as by Chan, Golub and LeVeque (1979): nothing is subtracted that is large.
        counts, means, variances = tf.split(gathered, [1, channels, channels], 1)
        total = tf.maximum(tf.reduce_sum(counts), 1)
        joint = tf.reduce_sum(counts * means, 0) / total
        spread = tf.reduce_sum(counts * (variances + tf.square(means - joint)), 0) / total
        return tf.reshape(joint, tf.shape(mean)), tf.reshape(spread, tf.shape(variance))

    def get_config(self) -> dict[str, Any]:
        """Return the base class's; the process set is not part of it."""
        config: dict[str, Any] = super().get_config()
        return config
