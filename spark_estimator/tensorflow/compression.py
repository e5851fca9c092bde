"""Smaller wire types for TensorFlow's tensors; see ``collectives.compression.casts``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator.collectives.compression.casts import (
    CastCompressor,
    Compressor,
    Int8Compressor,
    NoneCompressor,
    check_compressor,
)
from spark_estimator.collectives.reductions import describe_call

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
    "checked_compressor",
]


class _TensorCompressor(CastCompressor):
    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return bool(dtype.is_floating)


class FP16Compressor(_TensorCompressor):
    """Sends floating-point tensors as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = tf.float16


class BF16Compressor(_TensorCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = tf.bfloat16


class Compression:
    """The package's compressors.

    A class, or any object, with ``compress(tensor) -> (tensor, ctx)`` and ``decompress(tensor, ctx)`` is another.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor


def checked_compressor(compression: Any, kind: str) -> Any:
    """Return the value of ``compression=``. Raises ValueError when it cannot compress a tensor."""
    return check_compressor(compression, kind=describe_call(kind))
