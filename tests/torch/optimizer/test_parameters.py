"""DistributedOptimizer with all kinds of parameters: unused, frozen, added, of odd layouts, different between ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    Branches,
    assert_close,
    assert_same_on_all_ranks,
    digest,
    init_with_buckets_of,
    model_of,
)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_parameters_that_some_ranks_or_none_use(two_ranks: RankPool, bucket_bytes: int) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        uses = [("left", "left"), ("left", "right"), ("left right", "right"), ("", "left"), ("", "")]
        model, reference = Branches(), Branches()

        def make(model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

        optimizer, alone = hvd.DistributedOptimizer(make(model)), make(reference)
        for use in uses:
            optimizer.zero_grad()
            alone.zero_grad()
            for other in range(2):
                if use[other]:
                    inputs = torch.arange(4.0) + other
                    (reference(inputs, use[other]) / 2).backward()
                    if other == rank:
                        model(inputs, use[other]).backward()
            optimizer.step()
            alone.step()
            assert model.idle.weight.grad is None  # no rank used it, so weight decay must not shrink it
            assert_close(model, reference)
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_channels_last_gradients_travel_where_they_are(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        torch.manual_seed(2)
        model: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        reference = copy.deepcopy(model)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        inputs = torch.randn(2, 2, 3, 8, 8, generator=torch.Generator().manual_seed(4))
        model(inputs[rank].to(memory_format=torch.channels_last)).square().mean().backward()
        (sum(reference(inputs[other]).square().mean() for other in range(2)) / 2).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert ours.grad is not None
            assert ours.grad.stride() == ours.stride()
            torch.testing.assert_close(ours.grad.contiguous(), theirs.grad, rtol=0, atol=1e-6)

    two_ranks.run(check)


def test_gradients_of_any_memory_layout(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        parameter = nn.Parameter(torch.zeros(3, 4))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        base = torch.arange(12.0) * (rank + 1)
        for gradient in (
            base.reshape(4, 3).t(),
            torch.full((1, 1), float(rank + 1)).expand(3, 4),
            torch.arange(24.0).reshape(3, 8)[:, ::2] * (rank + 1),
        ):
            expected = (gradient / (rank + 1) * 1.5).clone()
            parameter.grad = gradient  # set by hand: no backward, so step() exchanges it
            optimizer.step()
            torch.testing.assert_close(parameter.grad, expected)
        # A parameter that is a slice of another tensor.
        padded = torch.zeros(4, 6)
        sliced = padded[:, ::2].requires_grad_()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([sliced], lr=1.0))
        (sliced * (rank + 1)).sum().backward()
        assert sliced.grad is not None
        assert sliced.grad.tolist() == [[1.5] * 3] * 4

    two_ranks.run(check)


def test_a_parameter_that_comes_to_lie_otherwise_on_one_rank(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.Conv2d(3, 4, 3, bias=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        numbers = torch.arange(108.0).view(4, 3, 3, 3)
        for step in range(3):
            if step == 1 and rank == 1:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            optimizer.zero_grad()
            (model.weight * numbers).sum().backward()
            assert model.weight.grad is not None
            assert torch.equal(model.weight.grad, numbers)
            optimizer.step()

    two_ranks.run(check)


def test_parameters_that_share_a_gradient(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.ParameterList([torch.ones(4), torch.ones(4), torch.ones(0), torch.ones(0)])
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum)
        model[0].grad = model[1].grad = torch.full((4,), 1.0 + rank)
        optimizer.step()
        for param in model[:2]:
            assert param.tolist() == [-2.0] * 4
        padded = torch.arange(4.0)
        model[0].grad, model[1].grad = padded, padded.view(2, 2).view(4)
        optimizer.step()
        for param in model[:2]:
            assert param.tolist() == [-2.0, -4.0, -6.0, -8.0]

    two_ranks.run(check)


def test_freezing_unfreezing_and_adding_parameters(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model, head = model_of(), nn.Linear(3, 2)
        hvd.broadcast_parameters(head.state_dict(), 0)
        model[0].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(
                [{"params": model[:3].parameters()}, {"params": model[3:].parameters(), "lr": 0.02}], lr=0.01
            )
        )

        def step() -> None:
            optimizer.zero_grad()
            head(model(torch.full((2, 6), rank + 1.0))).square().sum().backward()
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            assert len(set(hvd.allgather_object(digest(p.grad for p in trainable if p.grad is not None)))) == 1
            optimizer.step()
            assert_same_on_all_ranks(model)

        step()
        frozen = digest(model[0].parameters())
        model[0].requires_grad_(True)
        step()
        assert digest(model[0].parameters()) != frozen
        model[2].requires_grad_(False)
        step()
        assert model[2].weight.grad is None
        optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.02})
        step()
        assert_same_on_all_ranks(head)

    two_ranks.run(check)


def test_half_precision_models(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            model = nn.Linear(4, 2).to(dtype)
            hvd.broadcast_parameters(model.state_dict(), 0)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            model(torch.full((1, 4), rank + 1.0, dtype=dtype)).sum().backward()
            assert model.weight.grad is not None
            assert model.weight.grad.tolist() == [[1.5] * 4] * 2
            optimizer.step()
            assert_same_on_all_ranks(model.float())
        # The type changes after wrapping.
        model = nn.Linear(4, 2)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for convert in (nn.Module.float, nn.Module.double, nn.Module.bfloat16):
            convert(model)
            optimizer.zero_grad()
            model(torch.full((1, 4), rank + 1.0).to(model.weight.dtype)).sum().backward()
            assert model.weight.grad.tolist() == [[1.5] * 4] * 2

    two_ranks.run(check)


def test_different_parameters_are_an_error_that_names_the_first(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def wrapped(layers: list[nn.Module], **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
            model = nn.Sequential(*layers)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)

        cases: list[tuple[list[nn.Module], dict[str, Any], str]] = [
            ([nn.Linear(6, 4 + rank)], {}, r"Rank 0 has: parameter 0\.weight: shape \(4, 6\).*Rank 1 has:.*\(5, 6\)"),
            ([nn.Linear(6, 4)] + [nn.Linear(4, 2)] * rank, {}, "Rank 0 has: 2 parameters.* Rank 1 has: 4 parameters"),
            ([nn.Linear(6, 4)], {"op": [hvd.Sum, hvd.Average][rank]}, "sum.*average"),
            ([nn.Linear(6, 4)], {"backward_passes_per_step": 1 + rank}, "Rank 1 has: .* 2 backward passes a step"),
            ([nn.Linear(6, 4, dtype=[torch.float32, torch.float64][rank])], {}, "float32.*float64"),
        ]
        for layers, options, message in cases:
            model, optimizer = wrapped(layers, **options)
            inputs = torch.ones(1, 6, dtype=model[0].weight.dtype)
            for _ in range(2):  # the same each time, and no hang
                optimizer.zero_grad()
                with pytest.raises(MismatchError, match=message):
                    model(inputs).sum().backward()
                    optimizer.step()  # by a rank that waits for more passes
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    two_ranks.run(check)


def test_parameters_that_change_on_one_rank_only(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(1)
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            model[0].requires_grad_(False)
        with pytest.raises(
            MismatchError, match=["exchange gradients of different parameters", "Mismatched ALLREDUCE"][rank]
        ):
            model(torch.ones(1, 6)).sum().backward()
        hvd.barrier()  # the job is still usable

    two_ranks.run(check)
