"""Smaller wire types for gradients: what is sent in half precision, and how it comes back in its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """What may be passed as ``compression=``: a class, or any object, with these two functions."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Gives what to send instead of `tensor`, and what `decompress` will need."""
        ...

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Gives the received `tensor` in the form that it had before `compress`."""
        ...


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class BucketCompression(ABC):
    """A way to exchange gradients that needs more than one tensor at a time, or remembers what it has left out."""

    @abstractmethod
    def bucket(self, name: str, slots: Any, options: Any) -> Any:
        """A ``gradient_bucket.Bucket`` for these parameters."""


class _HalfCompressor:
    """Sends floating-point tensors in a type of two bytes; others as they are."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor in the wire type, and its own type."""
        return (tensor.to(cls.wire_dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in the type that it had."""
        return tensor.to(ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating-point tensors as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = torch.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors that come with the package."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_dtype(compression: object, dtype: torch.dtype) -> torch.dtype | None:
    """The type in which a gradient of `dtype` travels; None for a custom compressor, which need not tell beforehand."""
    if compression is NoneCompressor or isinstance(compression, BucketCompression):
        return dtype
    if compression in (FP16Compressor, BF16Compressor):
        half: torch.dtype = compression.wire_dtype
        return half if dtype.is_floating_point else dtype
    return None
