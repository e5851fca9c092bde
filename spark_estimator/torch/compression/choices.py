"""The compressors that come with the package, as ``hvd.Compression``."""

from __future__ import annotations

from spark_estimator.torch.compression.compressors import (
    BF16Compressor,
    BucketCompression,
    FP16Compressor,
    NoneCompressor,
)
from spark_estimator.torch.compression.powersgd import PowerSGD
from spark_estimator.torch.compression.topk import TopK

__all__ = ["Compression"]


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
        return PowerSGD(rank, dense_steps, seed)

    @staticmethod
    def topk(ratio: float = 0.01, *, dense_steps: int = 100, whole: int = 1024) -> BucketCompression:
        """Sends the largest elements only; see `topk.TopK`."""
        return TopK(ratio, dense_steps, whole)
