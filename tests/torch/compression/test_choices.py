"""The choices of ``hvd.Compression`` in the PyTorch binding."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import spark_estimator.torch as hvd
from spark_estimator.torch.compression import compressors
from tests.support.compression_family import check_family


def test_the_family() -> None:
    check_family(
        SimpleNamespace(**vars(compressors), Compression=hvd.Compression),
        torch.tensor([1.0, -0.5]),
        torch.tensor([1, 2], dtype=torch.int32),
        lambda tensor: str(tensor.dtype).removeprefix("torch."),
        torch.Tensor.numpy,
    )


def test_settings_reach_the_algorithms() -> None:
    assert repr(hvd.Compression.powersgd(3, dense_steps=7, seed=5)) == "PowerSGD(rank=3, dense_steps=7, seed=5)"
    assert repr(hvd.Compression.topk(0.5, dense_steps=7, whole=9)) == "TopK(ratio=0.5, dense_steps=7, whole=9)"
