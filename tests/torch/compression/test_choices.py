"""The choices of ``hvd.Compression`` in the PyTorch binding."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.torch.collectives import compressors
from tests.support.compression_family import check_family
from tests.torch.rank_pool import RankPool


def test_the_family() -> None:
    check_family(
        SimpleNamespace(**vars(compressors), Compression=hvd.Compression),
        torch.tensor([1.0, -0.5]),
        torch.tensor([1, 2], dtype=torch.int32),
        lambda tensor: str(tensor.dtype).removeprefix("torch."),
        torch.Tensor.numpy,
    )


@pytest.mark.parametrize("compression", ["fp16", None])
def test_other_values_are_refused(job_of_one: None, compression: object) -> None:
    with pytest.raises(ValueError, match=f"compression={compression!r} must be one of"):
        hvd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1), compression=compression)


def test_the_environment_chooses_where_nobody_does(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import os

        hvd.shutdown()
        os.environ["SPARK_ESTIMATOR_COMPRESSION"] = "bf16"
        hvd.init()
        del os.environ["SPARK_ESTIMATOR_COMPRESSION"]
        for options, expected in (
            ({}, 2_000),
            ({"compression": hvd.Compression.none}, 4_000),
            ({"compression": hvd.Compression.fp16}, 2_000),
            ({"op": hvd.Adasum}, 2_000),
        ):
            model = nn.Linear(100, 10, bias=False)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            assert expected <= optimizer.bytes_given <= expected + 4  # type: ignore[attr-defined]

    two_ranks.run(check)
