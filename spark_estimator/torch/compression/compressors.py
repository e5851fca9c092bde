"""Smaller wire types for gradients: what is sent in half precision, and how it comes back in its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch

from spark_estimator.torch.collectives.memory import where

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


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


class _Unchosen(NoneCompressor):
    """``Compression.none`` for want of a choice: the environment may make another."""

    def __eq__(self, other: object) -> bool:
        return other is self or other is NoneCompressor

    def __hash__(self) -> int:
        return hash(NoneCompressor)

    def __repr__(self) -> str:
        return "Compression.none"


#: Default of ``DistributedOptimizer(compression=)``, to be told from a ``Compression.none`` that was asked for.
UNCHOSEN = _Unchosen()


class BucketCompression(ABC):
    """A way to exchange gradients that needs more than one tensor at a time, or remembers what it has left out.

    Its ``repr`` shows its settings, which are to be the same on all ranks.
    """

    @abstractmethod
    def bucket(self, name: str, slots: Any, options: Any) -> Any:
        """A ``gradient_bucket.Bucket`` for these parameters."""

    @abstractmethod
    def for_one_optimizer(self) -> Self:
        """The same settings, with a memory of its own: what one optimizer has left out is not another's."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Raises ValueError: there is no form of one tensor that could travel alone."""
        raise ValueError(
            f"compression={self!r} exchanges an optimizer's gradients, and makes up in later steps for what it left "
            "out: it goes to hvd.DistributedOptimizer (op=hvd.Average or hvd.Sum). A single collective has no next "
            "step; use hvd.Compression.none, fp16 or bf16 there."
        )

    decompress = compress


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
    """The compressors that come with the package.

    `powersgd` and `topk` are called, with their settings, and go to `DistributedOptimizer` only.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    @staticmethod
    def powersgd(rank: int = 2, *, dense_steps: int = 100, seed: int = 0) -> BucketCompression:
        """Sends matrices as products of two narrow ones; see `powersgd.PowerSGD`."""
        from spark_estimator.torch.compression.powersgd import PowerSGD  # which needs this module

        return PowerSGD(rank, dense_steps, seed)

    @staticmethod
    def topk(ratio: float = 0.01, *, dense_steps: int = 100, whole: int = 1024) -> BucketCompression:
        """Sends the largest elements only; see `topk.TopK`."""
        from spark_estimator.torch.compression.topk import TopK  # which needs this module

        return TopK(ratio, dense_steps, whole)


def checked_compression(compression: object) -> object:
    """What was passed as ``compression=``, ready for one optimizer.

    Raises:
        ValueError: it is neither a `BucketCompression` nor has it ``compress`` and ``decompress``.
    """
    if isinstance(compression, BucketCompression):
        return compression.for_one_optimizer()
    if all(callable(getattr(compression, function, None)) for function in ("compress", "decompress")):
        return compression
    for name in ("powersgd", "topk"):
        if compression is getattr(Compression, name):
            raise ValueError(f"compression=hvd.Compression.{name} is to be called: hvd.Compression.{name}().")
    raise ValueError(
        f"compression={compression!r} must be one of hvd.Compression.none, fp16, bf16, powersgd() and topk(), or have "
        "the functions compress(tensor) and decompress(tensor, ctx)."
    )


def checked_compressor(compression: object, kind: str) -> Any:
    """What was passed as ``compression=`` to one collective. Raises ValueError when it cannot compress a tensor."""
    if isinstance(compression, BucketCompression):
        return compression  # which says itself where it belongs
    try:
        return checked_compression(compression)
    except ValueError as error:
        raise ValueError(f"{where(kind)}: {error}") from None


def wire_dtype(compression: object, dtype: torch.dtype) -> torch.dtype | None:
    """The type in which a gradient of `dtype` travels; None for a custom compressor, which need not tell beforehand."""
    if compression is NoneCompressor or isinstance(compression, BucketCompression):
        return dtype
    if compression in (FP16Compressor, BF16Compressor):
        half: torch.dtype = compression.wire_dtype
        return half if dtype.is_floating_point else dtype
    return None
