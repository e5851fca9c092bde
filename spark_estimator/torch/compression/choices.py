"""The package's compressors, as ``hvd.Compression``."""

from __future__ import annotations

from spark_estimator.torch.compression.compressors import (
    BF16Compressor,
    BucketCompression,
    FP16Compressor,
    NoneCompressor,
)
from spark_estimator.torch.compression.int8 import Int8
from spark_estimator.torch.compression.powersgd import PowerSGD
from spark_estimator.torch.compression.topk import TopK

__all__ = ["Compression"]


class Compression:
    """The package's compressors.

    `int8`, `powersgd` and `topk` are for `DistributedOptimizer` only; the last two are called, with their settings.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8: BucketCompression = Int8()

    @staticmethod
    def powersgd(rank: int = 2, *, dense_steps: int = 100, seed: int = 0) -> BucketCompression:
        """Sends matrices as products of two narrow ones; see `powersgd.PowerSGD`."""
        return PowerSGD(rank, dense_steps, seed)

    @staticmethod
    def topk(ratio: float = 0.01, *, dense_steps: int = 100, whole: int = 1024) -> BucketCompression:
        """Sends the largest elements only; see `topk.TopK`."""
        return TopK(ratio, dense_steps, whole)
