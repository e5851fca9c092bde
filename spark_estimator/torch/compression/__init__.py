"""Compression of gradients: casts to 16 bits, and int8 with error feedback."""

from spark_estimator.torch.collectives.compressors import (
    BF16Compressor,
    BucketCompression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)
from spark_estimator.torch.compression.choices import Compression

__all__ = ["BF16Compressor", "BucketCompression", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
