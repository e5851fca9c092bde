"""The compressors by the path that saved estimators and other pickles name them by."""

from spark_estimator.torch.collectives.compressors import BF16Compressor, BucketCompression, FP16Compressor

__all__ = ["BF16Compressor", "BucketCompression", "FP16Compressor"]
