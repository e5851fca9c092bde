"""Smaller wire types for gradients, on any backend of Keras; see ``collectives.compression.casts``."""

from __future__ import annotations

from typing import Any

from spark_estimator.collectives import context
from spark_estimator.collectives.compression.casts import (
    CastCompressor,
    Compressor,
    Int8Compressor,
    NoneCompressor,
    check_compressor,
)
from spark_estimator.env import Settings

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
    "checked_compression",
]


class _TensorCompressor(CastCompressor):
    # Keras is imported when it is used: its backend is chosen before.

    @staticmethod
    def cast(tensor: Any, dtype: str) -> Any:
        if type(tensor).__module__.partition(".")[0] == "tensorflow":
            import tensorflow as tf

            return tf.cast(tensor, dtype)
        from spark_estimator.keras.importing import keras

        return keras.ops.cast(tensor, dtype)

    @staticmethod
    def is_floating(dtype: str) -> bool:
        return dtype in ("float32", "float64")

    @staticmethod
    def dtype_of(tensor: Any) -> str:
        if hasattr(tensor.dtype, "as_numpy_dtype"):  # one of TensorFlow's
            return str(tensor.dtype.name)
        from spark_estimator.keras.importing import keras

        return str(keras.backend.standardize_dtype(tensor.dtype))


class FP16Compressor(_TensorCompressor):
    """Sends float32 and float64 as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = "float16"


class BF16Compressor(_TensorCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = "bfloat16"


class Compression:
    """The package's compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor


def checked_compression(compression: Any) -> Any:
    """Return the value of ``compression=``, by default the environment's. Raises ValueError: it is unusable."""
    if compression is not None:
        return check_compressor(compression)
    # Before ``init()``, too: a program that only loads a model and predicts may never call it.
    settings = context.settings() if context.is_initialized() else Settings.read()
    return getattr(Compression, settings.compression)
