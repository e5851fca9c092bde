"""PowerSGD and top-k in DistributedOptimizer, with many training loops, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.torch.feedback import MAKERS, Net, both, from_all_ranks, loss_of, owed_by, own_gradients
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_same_on_all_ranks, init_with_buckets_of


@both
def test_parameters_come_and_go(two_ranks: RankPool, kind: str) -> None:
    """What is owed follows a parameter through other plans; what is frozen keeps it."""

    def check(rank: int) -> None:
        model = Net()
        first = [*model.hidden.parameters(), *model.conv.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(first, lr=0.05), compression=MAKERS[kind]())

        def train(step: int) -> None:
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
            assert len(set(hvd.allgather_object(float(model.hidden.weight.detach().double().sum())))) == 1

        train(0)
        owed = owed_by(optimizer, model.hidden.weight).clone()
        assert owed.abs().max() > 0
        gradient = own_gradients(model, 1)["hidden.weight"]
        optimizer.add_param_group({"params": list(model.head.parameters())})
        train(1)
        now = owed_by(optimizer, model.hidden.weight)
        received = model.hidden.weight.grad
        assert gradient is not None
        assert received is not None
        expected = sum(from_all_ranks(owed + gradient - now)) / 2
        torch.testing.assert_close(received, expected, rtol=0, atol=1e-5)

        saved = now.clone()
        model.hidden.weight.requires_grad_(False)
        train(2)
        model.hidden.weight.requires_grad_(True)
        optimizer.zero_grad()
        model.conv.weight.requires_grad_(False)
        train(3)
        memory = optimizer._distributed.options.compression.memory  # type: ignore[attr-defined]
        assert model.conv.weight in memory._residues
        assert not torch.equal(owed_by(optimizer, model.hidden.weight), saved)
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


@both
def test_what_is_owed_ends_with_the_optimizer_and_with_the_job(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        compression = MAKERS[kind](dense_steps=1)
        model = Net()

        def wrapped() -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), compression=compression)

        optimizer = wrapped()
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
        assert owed_by(optimizer, model.hidden.weight).abs().max() > 0
        assert len(compression.memory._residues) == 0  # type: ignore[attr-defined]  # each optimizer has its own
        optimizer.zero_grad()
        again = wrapped()
        loss_of(model, 2, rank).backward()
        steps = {residue.steps for residue in again._distributed.options.compression.memory._residues.values()}
        assert steps == {1}
        optimizer._distributed.exchange.close()

        # Rank 0 has residues of the job before, rank 1 is new in this one: they still agree.
        hvd.shutdown()
        hvd.init()
        if rank == 1:
            again._distributed.exchange.close()
            again = wrapped()
        else:
            again._distributed.exchange.begin_step()
        again.zero_grad()
        loss_of(model, 3, rank).backward()
        assert len({bytes(grad.numpy()) for grad in from_all_ranks(model.hidden.weight.grad)}) == 1  # type: ignore[arg-type]
        assert copy.deepcopy(compression) == compression

    two_ranks.run(check)


@both
@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_reaches_all_ranks_and_is_forgotten(
    two_ranks: RankPool, kind: str, poison: float
) -> None:
    def check(rank: int) -> None:
        model = Net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind]())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, backoff_factor=0.5, growth_interval=1000)
        for step in range(6):
            optimizer.zero_grad()
            before = [param.detach().clone() for param in model.parameters()]
            owed = owed_by(optimizer, model.hidden.weight).clone()
            loss = loss_of(model, step, rank)
            if step == 3 and rank == 1:
                hook = model.hidden.weight.register_hook(lambda grad: grad.index_fill(1, torch.tensor([7]), poison))
            scaler.scale(loss).backward()
            if step == 3:
                assert model.hidden.weight.grad is not None
                assert not torch.isfinite(model.hidden.weight.grad).all()
                assert torch.equal(owed_by(optimizer, model.hidden.weight), owed)
                if rank == 1:
                    hook.remove()
            scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert moved == (step != 3)
            assert scaler.get_scale() == (4.0 if step < 3 else 2.0)
            assert_same_on_all_ranks(model)
            assert all(torch.isfinite(param).all() for param in model.parameters())
            assert torch.isfinite(owed_by(optimizer, model.hidden.weight)).all()

    two_ranks.run(check)


@both
def test_a_backward_that_raised_half_way(two_ranks: RankPool, kind: str) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("half way")

    def check(rank: int) -> None:
        init_with_buckets_of(1)
        torch.manual_seed(1)
        first, second = nn.Linear(20, 30), nn.Linear(30, 20)
        model = nn.Sequential(first, second)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind]())
        inputs = torch.randn(5, 20, generator=torch.Generator().manual_seed(rank))
        for step in range(4):
            optimizer.zero_grad()
            if step == 2 and rank == 0:
                with pytest.raises(RuntimeError, match="half way"):
                    second(Failing.apply(first(inputs))).square().mean().backward()
            model(inputs).square().mean().backward()
            optimizer.step()
            assert_same_on_all_ranks(model)
            assert all(torch.isfinite(param).all() for param in model.parameters())

    two_ranks.run(check)


@both
def test_sparse_gradients_and_groups(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        for options in ({}, {"sparse_as_dense": True}):
            torch.manual_seed(1)
            table, head = nn.Embedding(50, 20, sparse=True), nn.Linear(20, 30)
            params = [*table.parameters(), *head.parameters()]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(params, lr=0.1), compression=MAKERS[kind](), groups=[params[1:]], **options
            )
            for _ in range(3):
                optimizer.zero_grad()
                head(table(torch.tensor([rank, 4, 4]))).square().sum().backward()
                assert table.weight.grad is not None
                assert table.weight.grad.is_sparse
                if not options:  # by its rows, and all of them
                    assert set(table.weight.grad.coalesce().indices()[0].tolist()) == {0, 1, 4}
                optimizer.step()
                assert_same_on_all_ranks(table)
                assert_same_on_all_ranks(head)

    two_ranks.run(check)


def test_what_makes_no_sense_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        power, largest = MAKERS["powersgd"](), MAKERS["topk"]()
        ones = torch.ones(4, 4)
        for compression in (power, largest):
            for refused in (
                lambda c: hvd.allreduce(ones, compression=c),
                lambda c: hvd.grouped_allreduce([ones], compression=c),
                lambda c: hvd.reducescatter(ones, compression=c),
            ):
                with pytest.raises(ValueError, match=r"works only with hvd\.DistributedOptimizer"):
                    refused(compression)
        params = [nn.Parameter(ones)]
        for options, message in (
            ({"compression": power, "op": hvd.Adasum}, "is not supported with op=hvd.Adasum"),
            ({"compression": hvd.Compression.powersgd}, r"must be called: hvd.Compression.powersgd\(\)"),
            ({"compression": hvd.Compression.topk}, r"must be called: hvd.Compression.topk\(\)"),
            ({"compression": "fp16"}, "compression='fp16' must be one of"),
            ({"compression": None}, "compression=None must be one of"),
        ):
            with pytest.raises(ValueError, match=message):
                hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), **options)
        # Different settings are reported before any gradient is sent.
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.1), compression=hvd.Compression.powersgd(1 + rank)
        )
        with pytest.raises(MismatchError, match=r"Rank 0 has: .*rank=1.* Rank 1 has: .*rank=2"):
            params[0].sum().backward()
        assert optimizer.bytes_given == 0  # type: ignore[attr-defined]

    two_ranks.run(check)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hvd.Compression.powersgd(0), "rank=0 must be a whole number, 1 or more"),
        (lambda: hvd.Compression.powersgd(1.5), "rank=1.5 must be"),
        (lambda: hvd.Compression.powersgd(dense_steps=-1), "dense_steps=-1 must be a whole number, 0 or more"),
        (lambda: hvd.Compression.topk(0), "ratio=0 must be more than 0 and less than 1"),
        (lambda: hvd.Compression.topk(1.0), "ratio=1.0 must be"),
        (lambda: hvd.Compression.topk(whole=-1), "whole=-1 must be"),
    ],
)
def test_settings_out_of_range(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


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


@both
def test_over_a_process_set(three_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        pair = hvd.add_process_set([0, 2])
        model = Net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), compression=MAKERS[kind](), process_set=pair
        )
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
        weights = from_all_ranks(model.hidden.weight)
        assert torch.equal(weights[0], weights[2])
        assert not torch.equal(weights[0], weights[1])
        hvd.shutdown()
        hvd.init()

    three_ranks.run(check)


def test_powersgd_of_ranks_that_have_run_out_of_data(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.Linear(40, 30)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=MAKERS["powersgd"]()
        )
        for _ in range(3 - rank):
            optimizer.zero_grad()
            (model(torch.ones(1, 40)) * torch.arange(30)).sum().backward()
            optimizer.step()
        if rank == 0:  # of rank 1, which had joined, zeros
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, torch.arange(30.0).view(30, 1).expand(30, 40) / 2)
        assert hvd.join() == 0

    two_ranks.run(check)
