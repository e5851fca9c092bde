"""DistributedOptimizer at its edges: several that share a parameter, gradients that share memory, others' errors."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives.ops import Plan
from spark_estimator.errors import HorovodInternalError, MismatchError
from tests.ranks import run_ranks
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_same_on_all_ranks, init_with_buckets_of, model_of


def test_two_optimizers_with_a_parameter_in_common(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for op, order, idle in itertools.product((hvd.Average, hvd.Sum), (1, -1), (False, True)):
            first, shared, last = params = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
            optimizers = [
                hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), op=op)
                for pair in ([first, shared], [shared, last])
            ]
            expected = torch.zeros(3)
            for step in range(3):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                alone = idle and step == 1  # rank 0 has no batch
                if not alone or rank == 1:
                    ((first + shared + last) * (rank + 1.0)).sum().backward()
                for optimizer in optimizers[::order]:
                    optimizer.step()
                total = (2.0 if alone else 3.0) / (2 if op is hvd.Average else 1)
                for param in params:
                    assert param.grad is not None
                    assert param.grad.tolist() == [total] * 3, (op, order, idle, step)
                expected = expected - total
                for param, times in zip(params, (1, 2, 1), strict=True):
                    torch.testing.assert_close(param.data, expected * times)

    two_ranks.run(check)


def test_a_new_optimizer_around_the_same_parameters(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        param, other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

        def wrapped(lr: float, *params: nn.Parameter) -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=lr), op=hvd.Sum)

        def step(optimizer: Any) -> None:
            optimizer.zero_grad()
            param.grad = other.grad = None
            ((param + other) * (rank + 1.0)).sum().backward()
            optimizer.step()
            assert param.grad is not None
            assert param.grad.tolist() == [3.0] * 3

        older = wrapped(1.0, param, other)
        step(older)
        newer = wrapped(2.0, param, other)  # as a notebook's cell that is run again
        step(newer)
        step(newer)
        assert param.tolist() == [-3.0 - 12.0] * 3
        older.zero_grad()
        older.step()  # without gradients
        del newer
        step(older)  # has its parameters again
        newest = wrapped(1.0, other)
        step(newest)
        step(older)
        assert param.tolist() == [-15.0 - 6.0] * 3

    two_ranks.run(check)


def test_an_optimizer_that_is_collected_with_what_refers_to_it_leaves_no_hooks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        param = nn.Parameter(torch.zeros(3))

        class Trainer:
            def __init__(self) -> None:
                self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
                self.callback = self.step  # a cycle

            def step(self) -> None:
                param.sum().backward()
                self.optimizer.step()

        for _ in range(3):
            Trainer().step()
            gc.collect()
            assert not param._post_accumulate_grad_hooks

    two_ranks.run(check)


def test_a_gradient_in_an_array_that_another_optimizer_has_a_gradient_in(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        params = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Sum) for param in params]
        array = numpy.zeros(3, numpy.float32)
        for param in params:
            param.grad = torch.from_numpy(array)
        # Autograd adds both gradients to the one array: the first must not be sent before the second is there.
        (params[0] * (rank + 1.0) + params[1] * 10.0).sum().backward()
        for optimizer, param in zip(optimizers, params, strict=True):
            optimizer.step()
            assert param.grad is not None and param.grad.tolist() == [23.0] * 3

    two_ranks.run(check)


def test_one_gradient_of_two_parameters(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for groups, by_hand in itertools.product((1, 2), (True, False)):
            pair = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), op=hvd.Sum, groups=groups)
            for _ in range(2):
                pair[0].grad = pair[1].grad = torch.full((3,), 1.0 + rank)
                if by_hand:
                    optimizer.step()
                    assert pair[0].grad is not None
                    assert pair[0].grad.tolist() == [3.0] * 3
                else:
                    (pair[0] + pair[1]).sum().backward()
                    optimizer.step()
                    assert pair[0].grad is not None
                    assert pair[0].grad.tolist() == [7.0] * 3
                assert pair[1].tolist() == pair[0].tolist()
                optimizer.zero_grad()

    two_ranks.run(check)


@pytest.mark.parametrize("where", ["tensor", "leaf", "module"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_backward_inside_a_hook(two_ranks: RankPool, where: str, passes: int) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(1)
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), backward_passes_per_step=passes
        )
        reference = model_of()

        def inner(*_: Any) -> None:
            with torch.enable_grad():
                model(torch.full((2, 6), float(rank))).square().sum().backward()

        for step in range(4):
            optimizer.zero_grad()
            reference.zero_grad()
            for number in range(passes):
                output = model(torch.full((2, 6), 0.5 + step + number + rank))
                if where == "tensor":
                    output.register_hook(inner)
                elif where == "leaf":
                    scale = torch.ones((), requires_grad=True)
                    scale.register_hook(inner)
                    output = output * scale
                else:
                    last = nn.Identity()
                    last.register_full_backward_hook(inner)
                    output = last(output)
                output.square().sum().backward()
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


class RaisesAfter(torch.autograd.Function):
    """Calls a separate backward over `part` inside this one, and raises after that, if requested."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, part: nn.Module, raises: bool) -> torch.Tensor:
        ctx.part, ctx.raises = part, raises
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            ctx.part(torch.full((1, 4), float(hvd.rank()))).sum().backward()
        if ctx.raises:
            raise RuntimeError("out of memory, say")
        return gradient, None, None


def test_a_pass_that_raised_after_an_inner_one_is_tried_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(1)
        torch.manual_seed(3)
        model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

        def backward(raises: bool) -> None:
            hidden = model[0](torch.full((1, 4), 1.0 + rank))
            RaisesAfter.apply(hidden, model[1], raises).sum().backward()

        inner = model[1].weight
        for step in range(4):
            if step in (1, 2):
                if rank == 0:
                    time.sleep(0.2)  # the other rank's gradient is still in flight when it tries again
                with pytest.raises(RuntimeError, match="out of memory, say"):
                    backward(True)
                if step == 2:
                    optimizer.zero_grad()
            backward(False)
            assert inner.grad.tolist() == [[0.5] * 4] * 4, step  # of inputs that are the ranks' numbers
            optimizer.step()
            optimizer.zero_grad()
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_an_exchange_beside_one_that_raised(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        late, early, more = (nn.Parameter(torch.zeros(3)) for _ in range(3))
        failing, other = (hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), op=hvd.Sum) for p in (late, early))
        optimizers = [failing, other]

        def backward(factor: float) -> None:
            # The gradient of `late` is there first.
            ((early * factor).sum() + (late * factor).sum()).backward()

        for power in range(4):
            if power in (1, 2):
                failing.param_groups[0]["params"] = [late, more] if rank == 0 else [late]
                with pytest.raises(MismatchError):
                    backward(100.0)
                assert early.grad is not None
                assert early.grad.tolist() == [200.0] * 3
                failing.param_groups[0]["params"] = [late]
                for optimizer in optimizers:
                    optimizer.zero_grad()
            backward(float(power))
            for param in (late, early):
                assert param.grad is not None
                assert param.grad.tolist() == [2.0 * power] * 3
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    two_ranks.run(check)


class Stop(BaseException):
    """As a signal's handler may raise it."""


def test_what_came_while_a_bucket_was_handed_over_is_named() -> None:
    def train(rank: int) -> None:
        hvd.init()
        pair = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), groups=2)
        (pair[0] + pair[1]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        submit = Plan.submit

        def interrupted(self: Plan, *args: Any, **kwargs: Any) -> Any:
            submit(self, *args, **kwargs)
            raise Stop

        if rank == 0:
            Plan.submit = interrupted  # type: ignore[method-assign]
            with pytest.raises(Stop):
                (pair[0] + pair[1]).sum().backward()
            Plan.submit = submit  # type: ignore[method-assign]
            optimizer.zero_grad()
        with pytest.raises(HorovodInternalError, match="interrupted on rank 0 by a Stop" if rank == 0 else "rank 0"):
            (pair[0] + pair[1]).sum().backward()

    run_ranks(2, train)


def test_a_hook_that_is_added_after_wrapping_changes_what_is_sent(two_ranks: RankPool) -> None:
    """One clips in place and slowly, so that what was sent before it would be seen; another replaces the gradient."""

    def clip(param: torch.Tensor) -> None:
        time.sleep(0.05 * hvd.rank())
        assert param.grad is not None
        param.grad.clamp_(-1, 1)

    def replace(param: torch.Tensor) -> None:
        assert param.grad is not None
        param.grad = param.grad * 10

    def check(rank: int) -> None:
        for hook, expected in ((clip, 0.0), (replace, -60.0)):
            params = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0))
            for step in range(4):
                if step in (1, 2):  # once for one of them, when it has been in flight in a backward already
                    params[step - 1].register_post_accumulate_grad_hook(hook)
                optimizer.zero_grad()
                (sum(params) * (4.0 if rank else -16.0)).sum().backward()
                for number, param in enumerate(params):
                    assert param.grad is not None
                    wanted = expected if step > number else -6.0
                    assert param.grad.tolist() == [wanted] * 3, (hook.__name__, step, number)
                optimizer.step()

    two_ranks.run(check)
