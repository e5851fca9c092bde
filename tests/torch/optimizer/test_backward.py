"""DistributedOptimizer with all kinds of backward passes: several, nested, raising, interrupted."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives.ops import Plan
from spark_estimator.errors import HorovodInternalError
from tests.ranks import run_ranks
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    BATCH,
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


def test_passes_whose_number_nobody_knows_beforehand(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(300)
        make = OPTIMIZERS["adam"]
        model = model_of()
        optimizer: Any = hvd.DistributedOptimizer(make(model.parameters()))
        optimizer.set_backward_passes_per_step(None)
        for number, (inputs, targets) in enumerate(batches()):
            optimizer.zero_grad()
            for quarter in range(BATCH):
                rows = slice(quarter, quarter + 1)
                loss = nn.functional.mse_loss(model(own_rows(inputs)[rows]), own_rows(targets)[rows]) / BATCH
                # Sums that stay here, averages to which more is added, and both, with or without a last exchange.
                if number % 4 == 0 or (number % 4 == 1 and quarter < 3) or (number % 4 == 2 and quarter != 1):
                    with optimizer.accumulating():
                        loss.backward()
                else:
                    loss.backward()
                local = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
                averaged = number % 4 == 3 or (number % 4, quarter) in ((1, 3), (2, 1))
                assert (len(set(hvd.allgather_object(digest(local)))) == 1) == averaged
            optimizer.step()
        assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)
        with pytest.raises(ValueError, match=r"Use op=hvd\.Average"):
            summed: Any = hvd.DistributedOptimizer(make(model.parameters()), op=hvd.Sum)
            summed.set_backward_passes_per_step(None)

    two_ranks.run(check)


def test_ranks_that_accumulate_unequally_often(two_ranks: RankPool) -> None:
    def check(rank: int) -> list[float]:
        layer = nn.Linear(1, 1, bias=False)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.0))
        with optimizer.accumulating():
            for _ in range(2 * rank):
                layer(torch.ones(1, 1)).sum().backward()
            with pytest.raises(ZeroDivisionError), optimizer.accumulating():
                layer(torch.ones(1, 1)).sum().backward()
                raise ZeroDivisionError
            layer(torch.ones(1, 1)).sum().backward()  # the context continues outside the inner one
        layer(torch.ones(1, 1)).sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.flatten().tolist()

    assert two_ranks.run(check) == [[4.0], [4.0]]  # (3 + 5) / 2


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
            # Discarded gradients have no effect.
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 6)).sum().backward()
            optimizer.synchronize()  # type: ignore[attr-defined]
            model(torch.ones(1, 6)).sum().backward()
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
                    optimizer.step()  # continues without a second try
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
        with pytest.raises(AssertionError, match="during a backward pass"):
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


class Inside(torch.autograd.Function):
    """Adds to the gradients of `model` by a separate backward inside this one."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, model: nn.Module) -> torch.Tensor:
        ctx.model = model
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            ctx.model(torch.full((2, 6), float(hvd.rank()))).square().sum().backward()
        return gradient, None


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_backward_inside_backward_over_the_same_model(two_ranks: RankPool, passes: int, bucket_bytes: int) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), backward_passes_per_step=passes
        )
        reference = model_of()
        for step in range(4):
            optimizer.zero_grad()
            reference.zero_grad()
            for number in range(passes):
                model(
                    Inside.apply(torch.full((2, 6), 0.5 + step + number + rank, requires_grad=True), model)
                ).square().sum().backward()
                for other in range(2):
                    for value in (0.5 + step + number + other, float(other)):
                        (reference(torch.full((2, 6), value)).square().sum() / 2).backward()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):  # before the step
                torch.testing.assert_close(ours.grad, theirs.grad)
            optimizer.step()
            with torch.no_grad():
                for theirs in reference.parameters():
                    theirs -= 0.01 * theirs.grad
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_a_model_checkpointed_twice_in_one_pass(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        from torch.utils.checkpoint import checkpoint

        init_with_buckets_of(1)
        model = nn.Linear(4, 4)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        reference = copy.deepcopy(model)
        for step in range(3):
            optimizer.zero_grad()
            reference.zero_grad()
            inputs = torch.full((2, 4), 1.0 + rank + step, requires_grad=True)
            for _ in range(3):
                inputs = checkpoint(model, inputs, use_reentrant=True).tanh()
            inputs.sum().backward()
            for other in range(2):
                inputs = torch.full((2, 4), 1.0 + other + step)
                for _ in range(3):
                    inputs = reference(inputs).tanh()
                (inputs.sum() / 2).backward()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad)
            optimizer.step()
            reference.load_state_dict(model.state_dict())
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_gradients_that_begin_to_repeat_when_they_have_been_sent(two_ranks: RankPool) -> None:
    def check(rank: int) -> bool:
        init_with_buckets_of(1)
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        # The outer pass reaches the last layers first, and sends them.
        hidden = Inside.apply(model[:2](torch.ones(2, 6)), model)
        message = r"gradient of 4\.(weight|bias) was already sent.*use_reentrant=False|has left the job"
        with pytest.raises((AssertionError, HorovodInternalError), match=message) as raised:
            model[2:](hidden).sum().backward()
        return isinstance(raised.value, AssertionError)

    assert any(two_ranks.run(check))


def test_a_training_inside_backward(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        inner, outer = model_of(1), model_of(2)
        inner_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(inner.parameters(), lr=0.01))
        outer_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(outer.parameters(), lr=0.01))

        class Trains(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
                return hidden.clone()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> Any:
                with torch.enable_grad():
                    for _ in range(2):
                        inner_optimizer.zero_grad()
                        inner(torch.full((2, 6), float(rank))).sum().backward()
                        inner_optimizer.step()
                return gradient

        for _ in range(3):
            outer_optimizer.zero_grad()
            outer[2:](Trains.apply(outer[:2](torch.full((2, 6), float(rank))))).square().sum().backward()
            outer_optimizer.step()
            assert_same_on_all_ranks(inner)
            assert_same_on_all_ranks(outer)

    two_ranks.run(check)


def test_an_exchange_that_is_interrupted(tmp_path: Path) -> None:
    def train(rank: int, interrupted: str) -> None:
        hvd.init()
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()

        step()
        if rank == 0:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                step()
            Path(interrupted).touch()
            with pytest.raises(HorovodInternalError, match=r"interrupted on rank 0 by a KeyboardInterrupt.*broadcast"):
                step()
        else:
            while not Path(interrupted).exists():  # rank 0 waits for this rank's part until then
                time.sleep(0.01)
            with pytest.raises(HorovodInternalError, match=r"rank 0 .*has left the job"):
                for _ in range(2):  # the first may still find what rank 0 has sent before it was interrupted
                    step()
        hvd.shutdown()
        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        step()
        assert_same_on_all_ranks(model)

    run_ranks(2, train, args=(str(tmp_path / "interrupted"),))


def test_optimizers_that_ranks_reach_in_different_orders(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        heads = [nn.Linear(3, 1, bias=False) for _ in range(2)]
        for head in heads:
            nn.init.zeros_(head.weight)
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(head.parameters(), lr=1.0), head.named_parameters(), op=hvd.Sum)
            for head in heads
        ]
        inputs = torch.ones(1, 3)
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = heads[1](inputs) * 10
            if rank == 0 or step != 1:  # one of rank 1's batches has nothing for the first head
                loss = loss + heads[0](inputs)
            loss.sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            assert heads[0].weight.tolist() == [[-float([2, 3, 5][step])] * 3]
            assert heads[1].weight.tolist() == [[-20.0 * (step + 1)] * 3]

    two_ranks.run(check)


@pytest.mark.parametrize("clear", ["optimizer", "model", "synchronize", "passes"])
def test_an_exchange_that_no_step_uses(two_ranks: RankPool, clear: str) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(3))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("w", param)], op=hvd.Sum)

        def backward(factor: float) -> None:
            (param * factor).sum().backward()

        backward(1.0)
        optimizer.step()
        optimizer.zero_grad()
        backward(1.0)  # all ranks give this step up
        if clear == "synchronize":
            optimizer.synchronize()
        if clear == "model":
            param.grad = None
        elif clear == "passes":
            optimizer.set_backward_passes_per_step(1)
            param.grad = None
        else:
            optimizer.zero_grad()
        if rank == 0:  # and rank 1 has no batch for the next
            backward(1.0)
        optimizer.step()
        assert param.tolist() == [-3.0] * 3
        for power in range(3):
            optimizer.zero_grad()
            backward(10.0**power)
            optimizer.step()
            assert param.tolist() == [-3.0 - 2 * sum(10.0**each for each in range(power + 1))] * 3

    two_ranks.run(check)


def test_an_outer_backward_that_raises_after_an_inner_one(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        class Raises(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, hidden: torch.Tensor, raises: bool) -> torch.Tensor:
                ctx.raises = raises
                return hidden.clone()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> Any:
                with torch.enable_grad():
                    (inner * (rank + 1.0)).sum().backward()
                if ctx.raises:
                    raise ValueError("boom")
                return gradient, None

        inner, outer = (nn.Parameter(torch.zeros(3)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([inner, outer], lr=1.0))
        for clears in (True, False):
            loss = Raises.apply(outer * (rank + 1.0), True).sum()
            with pytest.raises(ValueError, match="boom"):
                loss.backward()
            if clears:
                optimizer.zero_grad()
            else:
                inner.grad = outer.grad = None
            Raises.apply(outer * (rank + 1.0), False).sum().backward()
            for param in (inner, outer):
                assert param.grad is not None
                assert param.grad.tolist() == [1.5] * 3
            optimizer.step()
            optimizer.zero_grad()

    two_ranks.run(check)


def test_ctrl_c_while_a_bucket_is_handed_over() -> None:
    def train(rank: int) -> None:
        hvd.init()
        pair = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), groups=2)
        submit = Plan.submit

        def interrupted(self: Plan, *args: Any, **kwargs: Any) -> Any:
            submit(self, *args, **kwargs)
            raise KeyboardInterrupt  # as the native call returns

        for step in range(3):
            if rank == 0 and step == 2:
                Plan.submit = interrupted  # type: ignore[method-assign]
                with pytest.raises(KeyboardInterrupt):
                    (pair[0] + pair[1]).sum().backward()
                Plan.submit = submit  # type: ignore[method-assign]
            optimizer.zero_grad()
            with pytest.raises(HorovodInternalError) if step == 2 else nullcontext():
                (pair[0] + pair[1]).sum().backward()
            if step < 2:
                optimizer.step()

    run_ranks(2, train)


def test_a_rank_that_has_its_first_batch_after_a_join(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        params = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
        optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Sum) for param in params]
        for batches_of in ([2, 0], [2, 2]):
            for _ in range(batches_of[rank]):
                for param, optimizer in zip(params, optimizers, strict=True):
                    optimizer.zero_grad()
                    param.sum().backward()
                    optimizer.step()
            last = hvd.join()
            hvd.broadcast_parameters([(str(number), param.data) for number, param in enumerate(params)], last)
        assert [param.tolist() for param in params] == [[-6.0] * 3] * 3

    two_ranks.run(check)
