"""Gradients that are not alone in their memory: views of one tensor, parts of one array, negated views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool
from tests.torch.training import init_with_buckets_of

Loss = Callable[[nn.Parameter, nn.Parameter, nn.Parameter], torch.Tensor]

# Of parameters [n], [n] and [2, n]. Autograd gives the last, and in some the others, a view of one tensor.
LOSSES: dict[str, Loss] = {
    "joined": lambda a, b, c: (torch.cat([a, b]) + c.view(-1)).square().sum(),
    "added": lambda a, b, c: (a.view(1, -1) + b + c.view(-1)[: a.numel()]).square().sum() + c.sum(),
    # The sine's derivative reads that tensor after c's gradient is complete.
    "read again": lambda a, b, c: (torch.cat([a, b]).sin().tanh().exp() + c.view(-1)).square().sum(),
}

OPTIONS: list[dict[str, Any]] = [
    {},
    {"op": hvd.Sum},
    {"gradient_predivide_factor": 2.0},
    {"groups": 3},
    {"op": hvd.Sum, "groups": 3},
    {"backward_passes_per_step": 2},
    {"sparse_as_dense": True},
    {"compression": hvd.Compression.int8},
    {"compression": hvd.Compression.bf16},
]


def parameters(elements: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in (elements, elements, (2, elements))]


@pytest.mark.parametrize("elements", [5, 200_000])
def test_views_of_one_tensor(two_ranks: RankPool, elements: int) -> None:
    def check(rank: int) -> None:
        for loss in LOSSES.values():
            for options in OPTIONS:
                init_with_buckets_of(1 if elements == 5 else elements * 8)
                passes = options.get("backward_passes_per_step", 1)
                alone = parameters(elements)
                for _ in range(passes):
                    loss(*alone).backward()  # type: ignore[call-arg]
                factor = 3.0 if options.get("op") is hvd.Sum else 1.5
                ours = parameters(elements)
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours, lr=0.0), **options)
                for _ in range(3):
                    optimizer.zero_grad()
                    for _ in range(passes):
                        (loss(*ours) * (1.0 + rank)).backward()  # type: ignore[call-arg]
                    for mine, single in zip(ours, alone, strict=True):
                        assert mine.grad is not None
                        assert single.grad is not None
                        tolerance = 1e-2 if "compression" in options else 1e-5
                        torch.testing.assert_close(mine.grad, single.grad * factor, rtol=tolerance, atol=tolerance)
                    optimizer.step()

    two_ranks.run(check)


def test_on_one_rank_only(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        pair = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), op=hvd.Sum)
        pair[0].grad = torch.ones(3)
        pair[1].grad = pair[0].grad if rank == 0 else torch.full((3,), 10.0)
        optimizer.step()
        assert [param.tolist() for param in pair] == [[-2.0] * 3, [-11.0] * 3]

    two_ranks.run(check)


def test_two_optimizers(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for by_hand in (False, True):
            a, b, c = parameters(5)
            optimizers = [
                hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=op)
                for params, op in (([c], hvd.Sum), ([a, b], hvd.Average))
            ]
            for _ in range(3):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                if by_hand:
                    memory = torch.full((10,), 4.0 * (1 + rank))
                    a.grad, b.grad, c.grad = memory[:5], memory[5:], memory.view(2, 5)
                    for optimizer in optimizers:
                        optimizer.synchronize()
                else:
                    ((torch.cat([a, b]) + c.view(-1)) * 4 * (1 + rank)).sum().backward()
                for param, total in ((a, 6.0), (b, 6.0), (c, 12.0)):
                    assert param.grad is not None
                    assert param.grad.unique().tolist() == [total], by_hand
                for optimizer in optimizers:
                    optimizer.step()

    two_ranks.run(check)


def test_parts_of_the_users_own_array_stay_there(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(1)
        params = [nn.Parameter(torch.zeros(4)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=hvd.Sum)
        flat = torch.zeros(12)
        for number, param in enumerate(params):
            param.grad = flat[number * 4 : number * 4 + 4]
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            if step < 2:
                (sum(params[1:], params[0]) * (1.0 + rank)).sum().backward()
            else:
                flat.fill_(1.0 + rank)
            optimizer.step()
            assert flat.tolist() == [3.0] * 12
        # The memory of two tensors of which PyTorch does not know that they share it.
        array = np.ones(8, np.float32)
        params[0].grad, params[1].grad = torch.from_numpy(array[:4]), torch.from_numpy(array[2:6])
        params[2].grad = None
        optimizer.step()
        for param in params[:2]:
            assert param.grad is not None
            assert param.grad.tolist() == [2.0] * 4

    two_ranks.run(check)


@pytest.mark.parametrize("kind", ["dense", "int8", "sparse"])
def test_large_overlapping_gradients_of_two_buckets(two_ranks: RankPool, kind: str) -> None:
    # Large, so that the engine does not fuse the buckets.
    length = 1 << 16

    def check(rank: int) -> None:
        a, b = nn.Parameter(torch.ones(length)), nn.Parameter(torch.ones(length))
        # Its first gradient shows that it is sparse: the buckets are then made again, in the middle of an exchange.
        words = nn.Embedding(4, 2, sparse=True)
        params = [a, b, words.weight] if kind == "sparse" else [a, b]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.0),
            op=hvd.Sum,
            groups=[[param] for param in params],
            compression=hvd.Compression.int8 if kind == "int8" else hvd.Compression.none,
        )
        for _ in range(2):
            memory = torch.zeros(length + length // 2)
            a.grad, b.grad = memory[:length], memory[length // 2 :]
            loss = a.sum() * (1 + rank) + b.sum() * 10 * (1 + rank)
            if kind == "sparse":
                loss = loss + words(torch.tensor([rank])).sum()
            loss.backward()
            assert a.grad is not None
            assert b.grad is not None
            # One rank's: 1 and 11, 11 and 10.
            assert a.grad[:: length // 4].tolist() == [3.0, 3.0, 33.0, 33.0]
            assert b.grad[:: length // 4].tolist() == [33.0, 33.0, 30.0, 30.0]
            optimizer.step()

    two_ranks.run(check)


def test_a_negated_view(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for options in OPTIONS[:2] + OPTIONS[-2:]:
            matrix, scalar = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(1))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([matrix, scalar], lr=1.0), **options)
            for _ in range(2):
                # Only one rank's has other bits in memory than its values.
                matrix.grad = torch._neg_view(torch.ones(3, 3)) if rank == 0 else torch.full((3, 3), -2.0)
                scalar.grad = None
                torch.complex(torch.ones(1), scalar).conj().imag.sum().backward()
                optimizer.synchronize()
                factor = 3.0 if options.get("op") is hvd.Sum else 1.5
                torch.testing.assert_close(matrix.grad, torch.full((3, 3), -factor))
                optimizer.step()

    two_ranks.run(check)
