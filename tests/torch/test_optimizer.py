"""DistributedOptimizer: the same training as in one process, whatever the training loop does."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.ranks import start_ranks
from tests.torch.rank_pool import RankPool

BATCH = 4
STEPS = 20


def model_of(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(steps: int = STEPS, size: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size * BATCH, 6, generator=generator), torch.randn(size * BATCH, 3, generator=generator))
        for _ in range(steps)
    ]


def own_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[hvd.rank() * BATCH : (hvd.rank() + 1) * BATCH]


def digest(tensors: Iterable[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def assert_same_on_all_ranks(model: nn.Module) -> None:
    assert len(set(hvd.allgather_object(digest(model.parameters())))) == 1


def init_with_buckets_of(size: int) -> None:
    """Joins anew with buckets so small that a small model has many."""
    hvd.shutdown()
    os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"] = str(size)
    hvd.init()
    del os.environ["SPARK_ESTIMATOR_BUCKET_BYTES"]


def trained_alone(
    make: Callable[[Any], torch.optim.Optimizer], after_backward: Callable[[nn.Module], object] = lambda model: None
) -> nn.Module:
    model = model_of()
    optimizer = make(model.parameters())
    for inputs, targets in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        after_backward(model)
        optimizer.step()
    return model


def assert_close(model: nn.Module, reference: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_ranks_train_as_one_process_with_twice_the_batch(two_ranks: RankPool, kind: str, bucket_bytes: int) -> None:
    make = OPTIMIZERS[kind]

    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        model = model_of(seed=rank)  # which broadcast_parameters makes equal
        hvd.broadcast_parameters(model_of().state_dict() if rank == 0 else model.state_dict(), root_rank=0)
        if rank == 0:
            model.load_state_dict(model_of().state_dict())
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for inputs, targets in batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
            optimizer.step()
        assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_three_ranks_and_sums(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for op, factor in ((hvd.Sum, 3.0), (hvd.Average, 1.0)):
            model = model_of()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=op)
            inputs, targets = batches(1, 3)[0]
            nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
            reference = model_of()
            nn.functional.mse_loss(reference(inputs), targets).backward()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert ours.grad is not None
                assert theirs.grad is not None
                torch.testing.assert_close(ours.grad, theirs.grad * factor, rtol=0, atol=1e-6)
            assert optimizer.op == op  # type: ignore[attr-defined]
            optimizer.step()
            assert_same_on_all_ranks(model)

    three_ranks.run(check)


def test_gradients_are_averages_when_backward_returns(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        make = OPTIMIZERS["sgd"]
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for inputs, targets in batches():
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert len(set(hvd.allgather_object(norm.item()))) == 1
            scaler.step(optimizer)
            scaler.update()
        assert_close(model, trained_alone(make, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


@pytest.mark.parametrize("who_clears", ["optimizer", "model"])
def test_a_step_that_the_scaler_skips_on_all_ranks(two_ranks: RankPool, who_clears: str) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
        clear = optimizer.zero_grad if who_clears == "optimizer" else model.zero_grad
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        before = digest(model.parameters())
        for step in range(3):
            clear()
            loss = model(torch.ones(2, 6)).sum() * (float("inf") if step == 0 and rank == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert (digest(model.parameters()) == before) == (step == 0)
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_the_way_that_horovod_needed_for_clipping(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        make = OPTIMIZERS["sgd"]
        model = model_of()
        optimizer: Any = hvd.DistributedOptimizer(make(model.parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number, (inputs, targets) in enumerate(batches()):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                if number % 2:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()  # exchanges nothing again, so that skipping is not needed
        assert_close(model, trained_alone(make, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)))

    two_ranks.run(check)


def test_schedulers_made_before_and_after(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for before in (True, False):
            model = model_of()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            if before:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            if not before:
                scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 1, gamma=0.5)
            assert wrapped is optimizer
            assert isinstance(wrapped, torch.optim.SGD)
            assert type(wrapped).__name__ == "SGD"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for step in range(3):
                    assert scheduler.get_last_lr() == [0.5**step]
                    wrapped.zero_grad()
                    if rank == 0 or step != 1:  # a rank without backward: step() must reach us past the scheduler
                        model(torch.ones(2, 6) * (rank + 1)).sum().backward()
                    wrapped.step()
                    scheduler.step()
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_accumulation(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(300)
        make = OPTIMIZERS["adam"]
        model = model_of()
        optimizer: Any = hvd.DistributedOptimizer(make(model.parameters()), backward_passes_per_step=2)
        assert optimizer.backward_passes_per_step == 2
        for inputs, targets in batches():
            optimizer.zero_grad()
            for half in range(2):
                rows = slice(half * BATCH // 2, (half + 1) * BATCH // 2)
                loss = nn.functional.mse_loss(model(own_rows(inputs)[rows]), own_rows(targets)[rows])
                (loss / 2).backward()
                if half == 0:
                    local = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
                    assert len(set(hvd.allgather_object(digest(local)))) == 2  # not exchanged yet
            optimizer.step()
        assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)
        # Fewer passes than announced, as at the end of an epoch: step() exchanges what there is.
        optimizer.zero_grad()
        model(torch.full((1, 6), float(rank))).sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)
        optimizer.set_backward_passes_per_step(1)
        optimizer.zero_grad()
        model(torch.full((1, 6), float(rank))).sum().backward()
        assert len(set(hvd.allgather_object(digest(p.grad for p in model.parameters() if p.grad is not None)))) == 1

    two_ranks.run(check)


def test_one_backward_too_many(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for passes in (1, 2):
            model = model_of()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=passes
            )
            for _ in range(passes):
                model(torch.ones(1, 6)).sum().backward()
            with pytest.raises(AssertionError, match=f"backward_passes_per_step={passes}"):
                model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            # Gradients that were given up count for nothing.
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 6)).sum().backward()
            optimizer.synchronize()  # type: ignore[attr-defined]
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


class Branches(nn.Module):
    """Uses `left`, `right` or both, and never `idle`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.left, self.right, self.idle = (nn.Linear(4, 2) for _ in range(3))

    def forward(self, inputs: torch.Tensor, use: str) -> torch.Tensor:
        parts = {"left": self.left, "right": self.right}
        return sum(part(inputs).sum() for name, part in parts.items() if name in use)  # type: ignore[return-value]


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
            assert model.idle.weight.grad is None  # nobody used it, so weight decay must not shrink it
            assert_close(model, reference)
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_channels_last_gradients_travel_where_they_are(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        torch.manual_seed(2)
        model: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        reference = copy.deepcopy(model)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _kept = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
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
        whole = torch.zeros(4, 6)
        sliced = whole[:, ::2].requires_grad_()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([sliced], lr=1.0))
        (sliced * (rank + 1)).sum().backward()
        assert sliced.grad is not None
        assert sliced.grad.tolist() == [[1.5] * 3] * 4

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


def test_closures(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        make = OPTIMIZERS["adam"]
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        for number, (inputs, targets) in enumerate(batches()):

            def closure(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets))
                loss.backward()
                return loss

            loss = optimizer.step(closure) if number % 2 else optimizer.step(closure=closure)
            assert isinstance(loss, torch.Tensor)
        assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)
        # LBFGS calls its closure several times in one step.
        lbfgs = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4))

        def same_loss() -> torch.Tensor:
            lbfgs.zero_grad()
            loss = model(torch.ones(2, 6)).square().sum()
            loss.backward()
            return loss

        lbfgs.step(same_loss)  # type: ignore[arg-type]
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"gradient_predivide_factor": 2.0}, 1e-6),
        ({"compression": hvd.Compression.fp16}, 1e-2),
        ({"compression": hvd.Compression.bf16}, 5e-2),
        ({"groups": 3}, 1e-6),
        ({"groups": "first and last"}, 1e-6),
    ],
)
def test_options(two_ranks: RankPool, options: dict[str, Any], tolerance: float) -> None:
    def check(rank: int) -> None:
        model, reference = model_of(), model_of()
        given = dict(options)
        if given.get("groups") == "first and last":
            given["groups"] = [[model[0].weight, model[4].weight], [model[2].bias]]
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **given)
        assert optimizer.gradient_predivide_factor == given.get("gradient_predivide_factor", 1.0)
        for inputs, targets in batches(3):
            for net, pick in ((model, own_rows), (reference, lambda tensor: tensor)):
                net.zero_grad()
                nn.functional.mse_loss(net(pick(inputs)), pick(targets)).backward()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=tolerance)
                assert ours.grad is not None
                assert ours.grad.dtype is torch.float32
            optimizer.zero_grad()
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_custom_compression(two_ranks: RankPool) -> None:
    class Transposed:
        """Sends another shape than the gradient's, and not always the same memory."""

        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
            return tensor.t().double(), tensor.shape

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: torch.Size) -> torch.Tensor:
            return tensor.t().reshape(ctx)

    def check(rank: int) -> None:
        model = Branches()
        _kept = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=Transposed)
        model(torch.arange(4.0) * (rank + 1), ["left", "left right"][rank]).backward()
        assert model.left.weight.grad is not None
        assert model.right.weight.grad is not None
        assert model.left.weight.grad.tolist() == [[0.0, 1.5, 3.0, 4.5]] * 2
        assert model.right.weight.grad.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2

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


def test_two_optimizers_of_one_model_family(two_ranks: RankPool) -> None:
    """A generator and a discriminator: the generator's backward runs through the discriminator's parameters, too."""

    def check(rank: int) -> None:
        torch.manual_seed(0)
        generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
        opt_g: Any = hvd.DistributedOptimizer(torch.optim.Adam(generator.parameters()), generator.named_parameters())
        opt_d: Any = hvd.DistributedOptimizer(torch.optim.Adam(discriminator.parameters()))
        for step in range(4):
            noise = torch.full((2, 3), float(rank + step))
            opt_d.zero_grad()
            discriminator(generator(noise).detach()).sum().backward()
            opt_d.step()
            opt_g.zero_grad()
            (-discriminator(generator(noise)).sum()).backward()
            opt_g.step()
        assert_same_on_all_ranks(generator)
        assert_same_on_all_ranks(discriminator)

    two_ranks.run(check)


def test_wrapping_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        for _ in range(3):  # a notebook cell that is run again; the first optimizers are still about
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum)
            optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
            keep = [optimizer]
            model.zero_grad()
            model(torch.full((1, 6), 1.0)).sum().backward()
            assert model[4].bias.grad.tolist() == [2.0] * 3
            keep[0].step()
        assert type(optimizer).__mro__.count(torch.optim.SGD) == 1
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_copies_and_pickles_are_plain_optimizers(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
            assert type(other) is torch.optim.Adam
            assert other.state_dict()["state"][0]["step"] == 1
            other.zero_grad()
            other.step()
        # The model can be saved and copied with its hooks, and its copy has none.
        model.zero_grad()
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        twins = [copy.deepcopy(model), torch.load(buffer, weights_only=False)]
        if rank == 0:
            for twin in twins:
                twin(torch.ones(1, 6)).sum().backward()
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        model(torch.full((1, 6), float(rank))).sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, fail: bool) -> torch.Tensor:
        ctx.fail = fail
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.fail:
            raise RuntimeError("out of memory, say")
        return gradient, None


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_a_backward_that_raises_half_way(two_ranks: RankPool, who: tuple[int, ...], bucket_bytes: int) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

        def backward(inputs: torch.Tensor, fail: bool) -> None:
            optimizer.zero_grad()
            hidden = Fails.apply(model[:2](inputs), fail)
            model[2:](hidden).sum().backward()

        for step in range(6):
            if rank in who and step in (0, 2, 3):
                with pytest.raises(RuntimeError, match="out of memory, say"):
                    backward(torch.full((1, 6), 100.0), True)
                if step == 3:
                    optimizer.step()  # goes on without a second try
                    assert_same_on_all_ranks(model)
                    continue
            backward(torch.full((1, 6), float(rank + step)), False)
            optimizer.step()
            assert_same_on_all_ranks(model)
        # What failed has left no trace: this step's gradients are exactly the averages of this step's.
        backward(torch.full((1, 6), float(rank)), False)
        reference = copy.deepcopy(model)
        reference.zero_grad()
        (sum(reference(torch.full((1, 6), float(other))).sum() for other in range(2)) / 2).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-5)

    two_ranks.run(check)


def test_zero_grad_inside_backward_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        hook = model[0].weight.register_hook(lambda gradient: optimizer.zero_grad())
        with pytest.raises(AssertionError, match="in flight"):
            model(torch.ones(1, 6)).sum().backward()
        hook.remove()
        optimizer.zero_grad()
        model(torch.full((1, 6), float(rank))).sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_checkpointing(two_ranks: RankPool, reentrant: bool, passes: int) -> None:
    def check(rank: int) -> None:
        from torch.utils.checkpoint import checkpoint

        init_with_buckets_of(300)
        model, reference = model_of(), model_of()
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=passes
        )
        alone = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            alone.zero_grad()
            for number in range(passes):
                for other in range(2):
                    inputs = torch.full((2, 6), float(other + step + number), requires_grad=True)
                    (reference(inputs).square().sum() / 2).backward()
                    if other == rank:
                        hidden = model[:1](inputs)
                        for part in (model[1:3], model[3:]):
                            hidden = checkpoint(part, hidden, use_reentrant=reentrant)
                        hidden.square().sum().backward()
            optimizer.step()
            alone.step()
            assert_close(model, reference)
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_reentrant_checkpoints_with_unused_parameters_end_in_step(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        from torch.utils.checkpoint import checkpoint

        model = Branches()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for use in ("left", "right", "left right"):
            optimizer.zero_grad()
            inputs = torch.full((4,), float(rank), requires_grad=True)
            checkpoint(model, inputs, use, use_reentrant=True).backward()
            optimizer.step()
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_compiled_models(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        make = OPTIMIZERS["sgd"]
        model = model_of()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of what the compiler cannot follow
            step = torch.compile(optimizer.step, backend="aot_eager")
            for inputs, targets in batches():
                optimizer.zero_grad()
                nn.functional.mse_loss(compiled(own_rows(inputs)), own_rows(targets)).backward()
                step()
        assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)

    two_ranks.run(check, timeout=110)


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
            ([nn.Linear(6, 4, dtype=[torch.float32, torch.float64][rank])], {}, "float32.*float64"),
        ]
        for layers, options, message in cases:
            model, optimizer = wrapped(layers, **options)
            inputs = torch.ones(1, 6, dtype=model[0].weight.dtype)
            for _ in range(2):  # the same each time, and no hang
                optimizer.zero_grad()
                with pytest.raises(MismatchError, match=message):
                    model(inputs).sum().backward()
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
        with pytest.raises(MismatchError, match=["about to exchange other gradients", "Mismatched ALLREDUCE"][rank]):
            model(torch.ones(1, 6)).sum().backward()
        hvd.barrier()  # the job is still usable

    two_ranks.run(check)


def test_what_is_refused_when_wrapping(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()

        def wrap(**options: Any) -> object:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

        names = list(model.named_parameters())
        cases: list[tuple[dict[str, Any], str]] = [
            ({"named_parameters": model.parameters()}, "tuples"),
            ({"named_parameters": [("same", parameter) for _, parameter in names]}, "more than once: same"),
            ({"named_parameters": names[:-1]}, r"number 5 of group 0, of shape \(3,\)"),
            ({"named_parameters": []}, "number 0 of group 0"),
            ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=hvd.Average"),
            ({"op": hvd.Max}, "hvd.Average, hvd.Sum or hvd.Adasum"),
            ({"groups": 0}, "groups=0"),
            ({"groups": [1, 2]}, "list of lists"),
            ({"groups": [["x"]]}, "'x'"),
            ({"groups": [[names[0][1]], [names[0][1]]]}, "twice"),
        ]
        for options, message in cases:
            with pytest.raises(ValueError, match=message):
                wrap(**options)
        with pytest.raises(ValueError, match="not a Linear"):
            _kept = hvd.DistributedOptimizer(model[0])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be a ProcessSet"):
            wrap(process_set=object())
        with pytest.warns(DeprecationWarning, match="num_groups"):
            wrap(num_groups=2)
        # Names of parameters that the optimizer does not own are ignored.
        wrap(named_parameters=[*names, ("other", nn.Parameter(torch.ones(1)))])
        with pytest.raises(ValueError, match="backward_passes_per_step=-1"):
            wrap().set_backward_passes_per_step(-1)  # type: ignore[attr-defined]

    two_ranks.run(check)


def test_leaving_and_joining_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 6), float(rank))).sum().backward()
            optimizer.step()
            assert_same_on_all_ranks(model)
            hvd.shutdown()
            with pytest.raises(ValueError, match=r"use hvd\.init"):
                model(torch.ones(1, 6)).sum().backward()
            hvd.init()

    two_ranks.run(check)


def test_a_rank_that_dies_ends_the_others_backward_with_its_name() -> None:
    def check(rank: int) -> str:
        hvd.init()
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(1000):
            if rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            try:
                model(torch.ones(1, 6)).sum().backward()
            except hvd.HorovodInternalError as error:
                with pytest.raises(hvd.HorovodInternalError):
                    optimizer.step()
                return f"{type(error).__name__}: {error}"
            optimizer.step()
        return "was not told"

    with start_ranks(2, check) as ranks:
        outcomes = ranks.wait()
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert outcomes[0].returned, outcomes[0]
    assert outcomes[0].value.startswith("PeerLostError: ")
    assert "rank 1" in outcomes[0].value


def test_a_job_of_one_has_nothing_to_exchange() -> None:
    hvd.init()
    try:
        model, reference = model_of(), trained_alone(OPTIMIZERS["adam"])
        optimizer: Any = hvd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()), model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        for inputs, targets in batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        assert digest(model.parameters()) == digest(reference.parameters())
        assert not model[0].weight._post_accumulate_grad_hooks
        assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.Adam
    finally:
        hvd.shutdown()
