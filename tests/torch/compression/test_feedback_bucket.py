"""PowerSGD and top-k in DistributedOptimizer: nothing is lost, ranks stay equal, of every type and in every order."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from spark_estimator.torch.compression.feedback_bucket import Part, Residue, Residues
from spark_estimator.torch.optimizer.slot import Slot
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
        totals = [torch.zeros_like(param) for param in params]
        received = [torch.zeros_like(param) for param in params]
        for step in range(12):
            optimizer.zero_grad()
            used = {"sometimes": step % 3 == rank}
            for total, gradient in zip(totals, own_gradients(model, step, **used).values(), strict=True):
                total += 0 if gradient is None else gradient
            loss_of(model, step, rank, **used).backward()
            for total, param in zip(received, params, strict=True):
                total += 0 if param.grad is None else param.grad.detach()
            optimizer.step()
            assert_same_on_all_ranks(model)
            # If one rank has used a parameter, all have its gradient; if no rank has, none does.
            assert (model.sometimes.weight.grad is not None) == (step % 3 < 2)
            assert model.never.weight.grad is model.never.bias.grad is None
        owing = 0
        for mine, got, param in zip(totals, received, params, strict=True):
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
        totals = received = torch.zeros(32, 8 * 36, dtype=torch.float64)
        for step in range(8):
            optimizer.zero_grad()
            gradient = own_gradients(model, step)["hidden.weight"]
            loss_of(model, step, rank).backward()
            optimizer.step()
            assert_same_on_all_ranks_of_any_type(model)
            assert gradient is not None
            assert model.hidden.weight.grad is not None
            assert model.hidden.weight.grad.dtype == dtype
            totals, received = totals + gradient.double(), received + model.hidden.weight.grad.double()
        owed = owed_by(optimizer, model.hidden.weight)
        assert owed.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        due = sum(from_all_ranks(totals - owed.double())) / 2
        # The result is rounded to the parameter's type, step by step; the residue is not.
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
        totals = {name: torch.zeros_like(param) for name, param in params.items()}
        received = {name: torch.zeros_like(param) for name, param in params.items()}
        for step in range(4):
            optimizer.zero_grad()
            gradients = own_gradients(model, step)
            loss_of(model, step, rank).backward()
            for name, param in params.items():
                gradient = gradients[name]
                assert gradient is not None
                assert param.grad is not None
                totals[name] += gradient
                received[name] += param.grad
            optimizer.step()
            assert_same_on_all_ranks(model)
        for name, param in params.items():
            due = sum(from_all_ranks(totals[name] - owed_by(optimizer, param))) / 2
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


def test_residues_last_as_long_as_parameter_form_and_job(job_of_one: None) -> None:
    residues, param = Residues(), nn.Parameter(torch.ones(2, 3))
    first = residues.residue(Slot(param, "weight"), context.engine())
    first.owed = torch.ones(2, 3)
    assert residues.residue(Slot(param, "weight"), context.engine()) is first
    param.data = param.data.double()
    assert residues.residue(Slot(param, "weight"), context.engine()).owed is None
    second = residues.residue(Slot(param, "weight"), context.engine())
    hvd.shutdown()
    hvd.init()
    assert residues.residue(Slot(param, "weight"), context.engine()) is not second
    assert not pickle.loads(pickle.dumps(residues))._residues


def test_gradient_and_residue_in_the_order_of_memory() -> None:
    param = nn.Parameter(torch.zeros(3, 2).t())  # [2, 3] in memory as [3, 2]
    param.grad = torch.arange(6.0).view(3, 2).t()
    slot = Slot(param, "weight")
    residue = Residue(None)
    residue.owed = torch.full((6,), 10.0)
    part = Part(slot, residue)
    assert (part.rows, part.columns) == (3, 2)
    total = part.take()
    assert total.tolist() == [[10.0, 11.0], [12.0, 13.0], [14.0, 15.0]]
    total.mul_(2)
    part.put_back()
    assert param.grad.t().tolist() == [[20.0, 22.0], [24.0, 26.0], [28.0, 30.0]]
    part.forget()
    assert part.total is None


def test_half_precision_is_computed_in_float32() -> None:
    param = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    param.grad = torch.ones(2, dtype=torch.float16)
    part = Part(Slot(param, "bias"), Residue(None))
    assert part.take().dtype is torch.float32 and (part.rows, part.columns) == (2, 1)
    part.put_back()
    assert param.grad.dtype is torch.float16
