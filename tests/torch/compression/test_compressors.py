"""The compressors of the PyTorch binding."""

from __future__ import annotations

import torch

from spark_estimator.torch.compression import Compression, compressors


def test_wire_types() -> None:
    for compression, floats in (("none", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        member = getattr(Compression, compression)
        assert compressors.wire_dtype(member, torch.float32) is floats
        assert compressors.wire_dtype(member, torch.int64) is torch.int64
    assert compressors.wire_dtype(type("Mine", (compressors.FP16Compressor,), {}), torch.float32) is None
