"""PowerSGD and top-k in DistributedOptimizer: nothing is lost, ranks stay equal, whatever the training loop does."""

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
from spark_estimator.torch.compression import BucketCompression
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_close, assert_same_on_all_ranks, init_with_buckets_of

MAKERS: dict[str, Callable[..., BucketCompression]] = {
    "powersgd": lambda **settings: hvd.Compression.powersgd(**{"rank": 2, "dense_steps": 0, **settings}),
    "topk": lambda **settings: hvd.Compression.topk(**{"ratio": 0.1, "dense_steps": 0, "whole": 10, **settings}),
}
both = pytest.mark.parametrize("kind", MAKERS)


class Net(nn.Module):
    """Matrices, a convolution, vectors, a scalar, and parameters that are hardly used."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.hidden = nn.Linear(8 * 36, 32)
        self.head = nn.Linear(32, 5)
        self.scale = nn.Parameter(torch.ones(()))
        self.sometimes = nn.Linear(32, 16)
        self.never = nn.Linear(32, 16)
        self.empty = nn.Parameter(torch.ones(0, 7))
        self.to(dtype)

    def forward(self, images: torch.Tensor, sometimes: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.hidden(torch.tanh(self.conv(images)).flatten(1)))
        scores: torch.Tensor = self.head(hidden) * self.scale
        return scores + (self.sometimes(hidden).mean() if sometimes else 0) + self.empty.sum()


def images_of(step: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1000 * step + rank)).to(dtype)


def loss_of(model: nn.Module, step: int, rank: int, **arguments: Any) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    loss: torch.Tensor = model(images_of(step, rank, dtype), **arguments).square().mean()
    return loss


def owed_by(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> torch.Tensor:
    """What this rank owes of a parameter's gradient, in the parameter's shape."""
    residue = optimizer._distributed.options.compression.memory._residues.get(param)  # type: ignore[attr-defined]
    if residue is None or residue.owed is None:
        return torch.zeros_like(param, requires_grad=False)
    axes = sorted(range(param.dim()), key=lambda axis: -param.stride(axis))
    shape = [param.shape[axis] for axis in axes]
    return residue.owed.view(shape).permute([axes.index(axis) for axis in range(len(axes))])


def from_all_ranks(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(hvd.allgather_object(tensor.detach().clone()))


def own_gradients(model: nn.Module, step: int, **arguments: Any) -> dict[str, torch.Tensor | None]:
    """What one process would have: the gradients of this rank, computed on a copy."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss_of(alone, step, hvd.rank(), **arguments).backward()
    return {name: parameter.grad for name, parameter in alone.named_parameters()}


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
        given = own_gradients(model, 1)["hidden.weight"]
        optimizer.add_param_group({"params": list(model.head.parameters())})
        train(1)
        now = owed_by(optimizer, model.hidden.weight)
        received = model.hidden.weight.grad
        assert given is not None
        assert received is not None
        expected = sum(from_all_ranks(owed + given - now)) / 2
        torch.testing.assert_close(received, expected, rtol=0, atol=1e-5)

        kept = now.clone()
        model.hidden.weight.requires_grad_(False)
        train(2)
        model.hidden.weight.requires_grad_(True)
        optimizer.zero_grad()
        model.conv.weight.requires_grad_(False)
        train(3)
        memory = optimizer._distributed.options.compression.memory  # type: ignore[attr-defined]
        assert model.conv.weight in memory._residues
        assert not torch.equal(owed_by(optimizer, model.hidden.weight), kept)
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

        # Rank 0 has a memory of the job before, rank 1 is new in this one: they agree all the same.
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
                hook = model.hidden.weight.register_hook(lambda given: given.index_fill(1, torch.tensor([7]), poison))
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
                with pytest.raises(ValueError, match=r"goes to hvd\.DistributedOptimizer"):
                    refused(compression)
        params = [nn.Parameter(ones)]
        for options, told in (
            ({"compression": power, "op": hvd.Adasum}, "does not go with op=hvd.Adasum"),
            ({"compression": hvd.Compression.powersgd}, r"is to be called: hvd.Compression.powersgd\(\)"),
            ({"compression": hvd.Compression.topk}, r"is to be called: hvd.Compression.topk\(\)"),
            ({"compression": "fp16"}, "compression='fp16' must be one of"),
            ({"compression": None}, "compression=None must be one of"),
        ):
            with pytest.raises(ValueError, match=told):
                hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), **options)
        # Settings that differ are told before any gradient travels.
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.1), compression=hvd.Compression.powersgd(1 + rank)
        )
        with pytest.raises(MismatchError, match=r"Rank 0 has: .*rank=1.* Rank 1 has: .*rank=2"):
            params[0].sum().backward()
        assert optimizer.bytes_given == 0  # type: ignore[attr-defined]

    two_ranks.run(check)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hvd.Compression.powersgd(0), "rank=0 must be a whole number, 1 or more"),
        (lambda: hvd.Compression.powersgd(1.5), "rank=1.5 must be"),
        (lambda: hvd.Compression.powersgd(dense_steps=-1), "dense_steps=-1 must be a whole number, 0 or more"),
        (lambda: hvd.Compression.topk(0), "ratio=0 must be more than 0 and less than 1"),
        (lambda: hvd.Compression.topk(1.0), "ratio=1.0 must be"),
        (lambda: hvd.Compression.topk(whole=-1), "whole=-1 must be"),
    ],
)
def test_settings_out_of_range(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
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
