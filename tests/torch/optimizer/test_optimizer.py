"""DistributedOptimizer: the same training as in one process, with many training loops."""

from __future__ import annotations

import copy
import gc
import io
import math
import os
import pickle
import signal
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.ranks import start_ranks
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    OPTIMIZERS,
    Branches,
    assert_close,
    assert_same_on_all_ranks,
    batches,
    digest,
    init_with_buckets_of,
    model_of,
    own_rows,
    trained_alone,
)


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
                    with pytest.warns(UserWarning, match=r"without optimizer.skip_synchronize\(\) context after"):
                        optimizer.step()  # exchanges nothing again
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
        arguments = dict(options)
        if arguments.get("groups") == "first and last":
            arguments["groups"] = [[model[0].weight, model[4].weight], [model[2].bias]]
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **arguments)
        assert optimizer.gradient_predivide_factor == arguments.get("gradient_predivide_factor", 1.0)
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
        _optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=Transposed)
        model(torch.arange(4.0) * (rank + 1), ["left", "left right"][rank]).backward()
        assert model.left.weight.grad is not None
        assert model.right.weight.grad is not None
        assert model.left.weight.grad.tolist() == [[0.0, 1.5, 3.0, 4.5]] * 2
        assert model.right.weight.grad.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2

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
            ({"named_parameters": [([name], param) for name, param in names]}, "as model.named_parameters"),
            ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
            *(({"backward_passes_per_step": wrong}, f"step={wrong!r} must") for wrong in (None, "a", 1.5, math.nan)),
            *(({"gradient_predivide_factor": wrong}, f"={wrong!r} must be a") for wrong in (None, "a", 0, math.nan)),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "requires op=hvd.Average"),
            ({"op": hvd.Max}, "hvd.Average, hvd.Sum or hvd.Adasum"),
            ({"groups": 0}, "groups=0"),
            ({"groups": [1, 2]}, "list of lists"),
            ({"groups": [["x"]]}, "'x'"),
            ({"groups": [[names[0][1]], [names[0][1]]]}, "twice"),
        ]
        for options, message in cases:
            with pytest.raises(ValueError, match=message):
                wrap(**options)
        with pytest.raises(ValueError, match=r"an optimizer object is needed, .* not Linear\("):
            _optimizer = hvd.DistributedOptimizer(model[0])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be a ProcessSet"):
            wrap(process_set=object())
        with pytest.warns(DeprecationWarning, match="num_groups"):
            wrap(num_groups=2)
        # Names of parameters that the optimizer does not own are ignored.
        wrap(named_parameters=[*names, ("other", nn.Parameter(torch.ones(1)))])
        with pytest.raises(ValueError, match="backward_passes_per_step=-1"):
            wrap().set_backward_passes_per_step(-1)  # type: ignore[attr-defined]

    two_ranks.run(check)


def test_optimizers_that_nobody_can_use_are_not_counted_in_a_new_job(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        gc.collect()
        gc.disable()
        dropped: Any = hvd.DistributedOptimizer(torch.optim.SGD(model_of().parameters(), lr=0.1))
        dropped.cycle = dropped
        del dropped
        if rank == 0:
            gc.collect()
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            model(torch.full((2, 6), float(rank))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert_same_on_all_ranks(model)
            hvd.shutdown()
            hvd.init()

    def check_without_collector(rank: int) -> None:
        try:
            check(rank)
        finally:
            gc.enable()

    two_ranks.run(check_without_collector, timeout=30)


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
