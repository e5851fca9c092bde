"""The compressors of the PyTorch binding."""

from __future__ import annotations

import pickle

import torch

from spark_estimator.torch.collectives import compressors
from spark_estimator.torch.compression import Compression


def test_wire_types() -> None:
    for compression, floats in (("none", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        member = getattr(Compression, compression)
        assert compressors.wire_dtype(member, torch.float32) is floats
        assert compressors.wire_dtype(member, torch.int64) is torch.int64
    assert compressors.wire_dtype(type("Mine", (compressors.FP16Compressor,), {}), torch.float32) is None


def test_pickles_that_name_the_former_module() -> None:
    for name in ("FP16Compressor", "BF16Compressor", "BucketCompression"):
        kind = getattr(compressors, name)
        assert pickle.loads(f"cspark_estimator.torch.compression.compressors\n{name}\n.".encode()) is kind
        assert pickle.loads(pickle.dumps(kind)) is kind
