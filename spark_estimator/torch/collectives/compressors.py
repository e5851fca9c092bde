"""Smaller wire types for gradients, by a cast (see ``collectives.compression.casts``) or for a bucket as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from spark_estimator.collectives.compression.casts import CastCompressor, Compressor, NoneCompressor, check_compressor
from spark_estimator.collectives.reductions import describe_call

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


__all__ = [
    "CASTS",
    "UNCHOSEN",
    "BF16Compressor",
    "BucketCompression",
    "Compressor",
    "FP16Compressor",
    "FP32Compressor",
    "NoneCompressor",
    "checked_compression",
    "checked_compressor",
    "wire_dtype",
]


class _Unchosen(NoneCompressor):
    """``Compression.none`` as the default: the environment may select another."""

    def __eq__(self, other: object) -> bool:
        return other is self or other is NoneCompressor

    def __hash__(self) -> int:
        return hash(NoneCompressor)

    def __repr__(self) -> str:
        return "Compression.none"


#: Default of ``DistributedOptimizer(compression=)``, distinct from an explicit ``Compression.none``.
UNCHOSEN = _Unchosen()


class BucketCompression(ABC):
    """A compression that needs more than one tensor at a time, or stores its errors for the next step.

    Its ``repr`` shows its settings, which are to be the same on all ranks.
    """

    @abstractmethod
    def bucket(self, name: str, slots: Any, options: Any) -> Any:
        """Make an ``optimizer.bucket.Bucket`` for these parameters."""

    @abstractmethod
    def for_one_optimizer(self) -> Self:
        """Return the same settings, with separate residues: one optimizer's errors are not another's."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Raise ValueError: there is no form of one tensor that could be sent alone."""
        raise ValueError(
            f"compression={self!r} keeps an error residual between optimizer steps, so it works only with "
            "hvd.DistributedOptimizer (op=hvd.Average or hvd.Sum). For a single collective, use "
            "hvd.Compression.none, fp16 or bf16."
        )

    decompress = compress


class _TensorCompressor(CastCompressor):
    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)

    @staticmethod
    def is_floating(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point


class FP16Compressor(_TensorCompressor):
    """Sends floating-point tensors as float16: 10 bits of precision, largest value 65504."""

    wire_dtype = torch.float16


class BF16Compressor(_TensorCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 7 bits of precision."""

    wire_dtype = torch.bfloat16


class FP32Compressor(_TensorCompressor):
    """Sends floating-point tensors as float32, which the engine may round further."""

    wire_dtype = torch.float32


#: By the names that the environment chooses from (``env.COMPRESSIONS``).
CASTS: Mapping[str, type] = {"none": NoneCompressor, "fp16": FP16Compressor, "bf16": BF16Compressor}


def checked_compression(compression: object) -> object:
    """Return the value of ``compression=``, ready for one optimizer.

    Raises:
        ValueError: it is neither a `BucketCompression` nor has it ``compress`` and ``decompress``.
    """
    if isinstance(compression, BucketCompression):
        return compression.for_one_optimizer()
    return check_compressor(compression, choices="none, fp16, bf16 and int8")


def checked_compressor(compression: object, kind: str) -> Any:
    """Return the value of ``compression=`` of one collective. Raises ValueError when it cannot compress a tensor."""
    if isinstance(compression, BucketCompression):
        return compression  # which checks its use itself
    return check_compressor(compression, kind=describe_call(kind), choices="none, fp16 and bf16")


def wire_dtype(compression: object, dtype: torch.dtype) -> torch.dtype | None:
    """Return the type in which a gradient of `dtype` is sent; None for a custom compressor."""
    if compression is NoneCompressor or isinstance(compression, BucketCompression):
        return dtype
    if compression in (FP16Compressor, BF16Compressor, FP32Compressor):
        half: torch.dtype = compression.wire_dtype
        return half if dtype.is_floating_point else dtype
    return None
