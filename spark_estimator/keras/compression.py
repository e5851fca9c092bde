"""Smaller wire types for gradients, on any backend of Keras: sent in half precision, back in their own type."""

from __future__ import annotations

from typing import Any

from spark_estimator.collectives import context


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


class _HalfCompressor:
    """Sends float32 and float64 in a type of two bytes; others as they are."""

    wire_dtype: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, str | None]:
        """The tensor in the wire type, and its own type, where that is another."""
        from spark_estimator.keras.importing import keras

        dtype = str(keras.backend.standardize_dtype(tensor.dtype))
        if dtype not in ("float32", "float64"):
            return tensor, None
        return keras.ops.cast(tensor, cls.wire_dtype), dtype

    @staticmethod
    def decompress(tensor: Any, ctx: str | None) -> Any:
        """The tensor in the type that it had."""
        from spark_estimator.keras.importing import keras

        return tensor if ctx is None else keras.ops.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends gradients as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = "float16"


class BF16Compressor(_HalfCompressor):
    """Sends gradients as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = "bfloat16"


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def checked_compression(compression: Any) -> Any:
    """What was passed as ``compression=``; for None, the environment's choice.

    Raises:
        ValueError: it lacks ``compress`` or ``decompress``.
    """
    if compression is None:
        return getattr(Compression, context.settings().compression)
    if all(callable(getattr(compression, function, None)) for function in ("compress", "decompress")):
        return compression
    raise ValueError(
        f"compression={compression!r} must be one of hvd.Compression.none, fp16 and bf16, or have the functions "
        "compress(tensor) and decompress(tensor, ctx)."
    )
