"""PowerSGD and top-k in DistributedOptimizer: nothing is lost, ranks stay equal, of every type and in every order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.torch.feedback import MAKERS, Net, both, from_all_ranks, loss_of, owed_by, own_gradients
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_close, assert_same_on_all_ranks, init_with_buckets_of

SCALES: list[tuple[dict[str, Any], float]] = [
    ({}, 0.5),
    ({"op": hvd.Sum}, 1.0),
    ({"gradient_predivide_factor": 8.0}, 0.5),
]


@pytest.mark.parametrize(("options", "factor"), SCALES, ids=["average", "sum", "predivided"])
@pytest.mark.parametrize("bucket_bytes", [1, 4000, 1 << 20])
@both
def test_nothing_is_lost(
    two_ranks: RankPool, kind: str, bucket_bytes: int, options: dict[str, Any], factor: float
) -> None:
    """What was received and what is owed add up to all gradients, over many steps."""

    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        model = Net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind](), **options
        )
        params = list(model.parameters())
        given = [torch.zeros_like(param) for param in params]
        received = [torch.zeros_like(param) for param in params]
        for step in range(12):
            optimizer.zero_grad()
            used = {"sometimes": step % 3 == rank}
            for total, gradient in zip(given, own_gradients(model, step, **used).values(), strict=True):
                total += 0 if gradient is None else gradient
            loss_of(model, step, rank, **used).backward()
            for total, param in zip(received, params, strict=True):
                total += 0 if param.grad is None else param.grad.detach()
            optimizer.step()
            assert_same_on_all_ranks(model)
            # Of what one rank has used all have a gradient, and of what nobody has used nobody.
            assert (model.sometimes.weight.grad is not None) == (step % 3 < 2)
            assert model.never.weight.grad is model.never.bias.grad is None
        owing = 0
        for mine, got, param in zip(given, received, params, strict=True):
            owed = owed_by(optimizer, param)
            due = sum(from_all_ranks(mine - owed)) * factor
            torch.testing.assert_close(got, due, rtol=0, atol=2e-5)
            owing += int(owed.abs().max() > 1e-4) if owed.numel() else 0
        assert owing >= 2, "else all would have travelled, and nothing been shown"

    two_ranks.run(check)


@both
def test_three_ranks_stay_equal_and_learn(three_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        model = Net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=3e-3), model.named_parameters(), compression=MAKERS[kind]()
        )
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = loss_of(model, 0, rank)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            assert_same_on_all_ranks(model)
        assert losses[-1] < losses[0] / 4

    three_ranks.run(check)


def test_matrices_of_low_rank_arrive_as_they_are(two_ranks: RankPool) -> None:
    """One sample a rank makes gradients of rank one, and their average one of rank two."""

    def check(rank: int) -> None:
        model = nn.Linear(40, 30)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=MAKERS["powersgd"]()
        )
        for step in range(4):
            inputs = [torch.randn(1, 40, generator=torch.Generator().manual_seed(r)) for r in range(2)]
            outputs = [torch.randn(1, 30, generator=torch.Generator().manual_seed(9 + r)) for r in range(2)]
            optimizer.zero_grad()
            ((1 + step) * model(inputs[rank]) * outputs[rank]).sum().backward()
            expected = sum(one.t() @ other for one, other in zip(outputs, inputs, strict=True)) * (1 + step) / 2
            assert isinstance(expected, torch.Tensor)
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, expected, rtol=0, atol=1e-4)
            assert owed_by(optimizer, model.weight).abs().max() < 1e-4
            # The next step begins with what this one has found.
            factor = optimizer._distributed.options.compression.memory._residues[model.weight].factor  # type: ignore[attr-defined]
            along = torch.linalg.qr(factor)[0]
            torch.testing.assert_close(expected @ along @ along.t(), expected, rtol=0, atol=1e-3)

    two_ranks.run(check)


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
        (param * 0).sum().backward()  # what comes now was owed
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
        for _ in range(3):  # in the last one three times the first element travels, which has a bit too many
            optimizer.zero_grad()
            (param * gradient).sum().backward()
            assert param.grad is not None
            received += param.grad.float()
        owed = owed_by(optimizer, param)
        assert owed[1] == 2.5
        assert 0 < abs(owed[0]) < 2**-5
        assert torch.equal(received + owed, 3 * gradient.float())

    two_ranks.run(check)


@both
def test_the_first_steps_are_dense(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        model, reference = Net(), Net()
        ours = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=MAKERS[kind](dense_steps=3)
        )
        theirs = hvd.DistributedOptimizer(torch.optim.SGD(reference.parameters(), lr=0.1))
        sent = []
        assert ours.bytes_given == 0  # type: ignore[attr-defined]
        for step in range(5):
            for model_, optimizer in ((model, ours), (reference, theirs)):
                optimizer.zero_grad()
                loss_of(model_, step, rank).backward()
                optimizer.step()
            same = all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))
            assert same == (step < 3)
            sent.append(ours.bytes_given)  # type: ignore[attr-defined]
        assert sent[0] == sent[2] == theirs.bytes_given  # type: ignore[attr-defined]
        assert sent[3] == sent[4] < sent[0] / 3

    two_ranks.run(check)


def test_bytes_of_the_example_in_the_docstrings(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for compression, expected in (
            (hvd.Compression.powersgd(dense_steps=0), 16_000 + 4),
            (hvd.Compression.topk(dense_steps=0), 80_000 + 1),
            (hvd.Compression.bf16, 2_000_000 + 2),
            (hvd.Compression.none, 4_000_000 + 4),
        ):
            model = nn.Linear(1000, 1000, bias=False)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=compression)
            model(torch.ones(1, 1000)).sum().backward()
            assert optimizer.bytes_given == expected  # type: ignore[attr-defined]

    two_ranks.run(check)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(two_ranks: RankPool, kind: str, dtype: torch.dtype) -> None:
    def check(rank: int) -> None:
        model = Net(dtype)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind]())
        given = received = torch.zeros(32, 8 * 36, dtype=torch.float64)
        for step in range(8):
            optimizer.zero_grad()
            own = own_gradients(model, step)["hidden.weight"]
            loss_of(model, step, rank).backward()
            optimizer.step()
            assert_same_on_all_ranks_of_any_type(model)
            assert own is not None
            assert model.hidden.weight.grad is not None
            assert model.hidden.weight.grad.dtype == dtype
            given, received = given + own.double(), received + model.hidden.weight.grad.double()
        owed = owed_by(optimizer, model.hidden.weight)
        assert owed.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        due = sum(from_all_ranks(given - owed.double())) / 2
        # What comes back is rounded to the parameter's type, step by step; the residue is not.
        tolerance = {torch.float16: 2e-4, torch.bfloat16: 2e-3, torch.float64: 1e-12}[dtype]
        torch.testing.assert_close(received, due, rtol=0, atol=tolerance)

    def assert_same_on_all_ranks_of_any_type(model: nn.Module) -> None:
        sums = [[param.double().sum().item() for param in model.parameters()]]
        assert sums * 2 == [list(theirs[0]) for theirs in hvd.allgather_object(sums)]

    two_ranks.run(check)


@both
def test_other_orders_in_memory(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        model = Net()
        model.conv.weight.data = model.conv.weight.data.to(memory_format=torch.channels_last)
        model.hidden.weight = nn.Parameter(model.hidden.weight.detach().t().contiguous().t())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind]())
        params = {name: model.get_parameter(name) for name in ("conv.weight", "hidden.weight")}
        given = {name: torch.zeros_like(param) for name, param in params.items()}
        received = {name: torch.zeros_like(param) for name, param in params.items()}
        for step in range(4):
            optimizer.zero_grad()
            own = own_gradients(model, step)
            loss_of(model, step, rank).backward()
            for name, param in params.items():
                gradient = own[name]
                assert gradient is not None
                assert param.grad is not None
                given[name] += gradient
                received[name] += param.grad
            optimizer.step()
            assert_same_on_all_ranks(model)
        for name, param in params.items():
            due = sum(from_all_ranks(given[name] - owed_by(optimizer, param))) / 2
            torch.testing.assert_close(received[name], due, rtol=0, atol=1e-5)

    two_ranks.run(check)


@both
def test_gradients_of_several_passes_travel_once(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        model, joint = Net(), Net()
        ours = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind](), backward_passes_per_step=2
        )
        theirs = hvd.DistributedOptimizer(torch.optim.SGD(joint.parameters(), lr=0.05), compression=MAKERS[kind]())
        for step in range(3):
            ours.zero_grad()
            theirs.zero_grad()
            for part in (0, 1):
                loss_of(model, 2 * step + part, rank).backward()
            (loss_of(joint, 2 * step, rank) + loss_of(joint, 2 * step + 1, rank)).backward()
            ours.step()
            theirs.step()
        assert_close(model, joint)
        assert_same_on_all_ranks(model)

    two_ranks.run(check)
