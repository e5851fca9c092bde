"""The compressors of the TensorFlow binding."""

from __future__ import annotations

import tensorflow as tf

from spark_estimator.tensorflow import compression
from tests.support.compression_family import check_family, check_int8


def test_the_family() -> None:
    integers = tf.constant([1, 2], dtype=tf.int32)
    floats = tf.constant([1.0, -0.5])
    check_family(compression, floats, integers, lambda tensor: tensor.dtype.name, lambda tensor: tensor.numpy())
    check_int8(compression, floats)
