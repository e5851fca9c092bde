"""Top-k: its settings, and which elements are sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.torch.compression.topk import TopK, index_type
from tests.torch.feedback import owed_by
from tests.torch.rank_pool import RankPool


def test_the_largest_elements_travel(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(4, 5))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([param], lr=1.0), compression=hvd.Compression.topk(0.1, dense_steps=0, whole=0)
        )
        gradient = torch.arange(20.0).view(4, 5)
        (param * (gradient if rank == 0 else gradient.flip(0, 1))).sum().backward()
        assert param.grad is not None
        # Rank 0's largest are at the end, rank 1's at the start: two each.
        expected = torch.zeros(20)
        expected[[0, 1, 18, 19]] = torch.tensor([9.5, 9.0, 9.0, 9.5])
        assert torch.equal(param.grad.view(-1), expected)
        optimizer.step()
        optimizer.zero_grad()
        (param * 0).sum().backward()  # these values are from the residue
        assert param.grad[3].tolist() == [0, 8.0, 8.5, 0, 0]

    two_ranks.run(check)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_what_rounding_takes_away_is_owed_too(two_ranks: RankPool, factor: float) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([param], lr=0.0),
            compression=hvd.Compression.topk(0.1, dense_steps=0, whole=0),
            gradient_predivide_factor=factor,
        )
        gradient = torch.tensor([1 + 2**-7, 2.5, *[0.0] * 8], dtype=torch.bfloat16)
        received = torch.zeros(10)
        for _ in range(3):  # in the last one three times the first element is sent, which has a bit too many
            optimizer.zero_grad()
            (param * gradient).sum().backward()
            assert param.grad is not None
            received += param.grad.float()
        owed = owed_by(optimizer, param)
        assert owed[1] == 2.5
        assert 0 < abs(owed[0]) < 2**-5
        assert torch.equal(received + owed, 3 * gradient.float())

    two_ranks.run(check)


def test_how_many_elements_travel() -> None:
    settings = TopK(ratio=0.01, whole=1024)
    assert settings.sent_elements(1_000_000, 4) == 10_000
    assert settings.sent_elements(1023, 4) == 1023  # is sent whole
    assert settings.sent_elements(1025, 4) == 11  # rounded up
    assert TopK(ratio=1e-9, whole=0).sent_elements(100, 4) == 1
    # With an index of 4 bytes, half of the float32 elements cost as much as all; of float16 a third.
    assert TopK(ratio=0.5, whole=0).sent_elements(100, 4) == 100
    assert TopK(ratio=0.49, whole=0).sent_elements(100, 4) == 49
    assert TopK(ratio=0.34, whole=0).sent_elements(100, 2) == 100
    assert TopK(ratio=0.33, whole=0).sent_elements(100, 2) == 33


def test_indices_have_room() -> None:
    assert index_type((1 << 31) - 1) is torch.int32
    assert index_type(1 << 31) is torch.int64


def test_settings_out_of_range() -> None:
    for ratio in (0, 1, -0.1, "0.5"):
        with pytest.raises(ValueError, match=r"ratio=.* must be more than 0 and less than 1"):
            TopK(ratio=ratio)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole=-1 must be a whole number, 0 or more"):
        TopK(whole=-1)
