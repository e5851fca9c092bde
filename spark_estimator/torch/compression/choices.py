"""The package's compressors, as ``hvd.Compression``."""

from __future__ import annotations

from spark_estimator.torch.collectives.compressors import (
    BF16Compressor,
    BucketCompression,
    FP16Compressor,
    NoneCompressor,
)
from spark_estimator.torch.compression.int8 import Int8

__all__ = ["Compression"]


class Compression:
    """The package's compressors. `int8` is for `DistributedOptimizer` only."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8: BucketCompression = Int8()
