"""The inputs of ``check.py``'s collectives, and the expected results.

Values are small whole numbers, so that results are compared exactly with what the CPU computes in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import spark_estimator.torch as hvd

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
]  # fmt: skip


def values_of(shape: Sequence[int], dtype: torch.dtype, rank: int, seed: int = 0) -> torch.Tensor:
    """What a rank gives, in float64 on the CPU: exact in every type, and so are sums over a few ranks."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low, high = (0, 2) if dtype is torch.bool else (0, 6) if dtype is torch.uint8 else (-5, 6)
    return torch.randint(low, high, tuple(shape), generator=generator).double()


def everyone(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """[size, *shape] what all ranks give."""
    return torch.stack([values_of(shape, dtype, rank, seed) for rank in range(hvd.size())])


def on_gpu(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.to(dtype).cuda()


def check_equal(got: torch.Tensor, right: torch.Tensor, what: object) -> None:
    """Fails where a tensor is not on a GPU, or not what it should be; `right`: in float64, on the CPU."""
    assert got.is_cuda, (what, got.device)
    actual, expected = got.double().cpu(), right.to(got.dtype).double()
    assert torch.equal(actual, expected), (what, tuple(actual.shape), actual, expected)
