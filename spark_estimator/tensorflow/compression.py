"""Smaller wire types for gradients: what is sent in half precision, and how it comes back in its own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from spark_estimator.collectives.reductions import where


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: object) -> Any:
        """The tensor itself."""
        return tensor


class _HalfCompressor:
    """Sends floating-point tensors in a type of two bytes; others as they are."""

    wire_dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor in the wire type, and its own type."""
        return (tf.cast(tensor, cls.wire_dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the type that it had."""
        return tf.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating-point tensors as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = tf.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors that come with the package.

    A class, or any object, with ``compress(tensor) -> (tensor, ctx)`` and ``decompress(tensor, ctx)`` is another.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def checked_compressor(compression: Any, kind: str) -> Any:
    """What was passed as ``compression=``. Raises ValueError when it cannot compress a tensor."""
    if all(callable(getattr(compression, function, None)) for function in ("compress", "decompress")):
        return compression
    raise ValueError(
        f"{where(kind)}: compression={compression!r} must be one of hvd.Compression.none, fp16 and bf16, or have the "
        "functions compress(tensor) and decompress(tensor, ctx)."
    )
