"""The states of a step, and how often gradients are exchanged, in each order of calls that users make."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError, SparkEstimatorError
from spark_estimator.torch.optimizer.step_state import StepEvent, StepProgress, StepState
from tests.torch.rank_pool import RankPool
from tests.torch.training import Branches, assert_same_on_all_ranks, init_with_buckets_of, model_of


class Recorded(StepProgress):
    """Keeps the names of the events, but for those that change nothing."""

    events: list[str]

    def apply(self, event: StepEvent) -> None:
        before = self.state
        super().apply(event)
        if self.state is not before:
            self.events.append(event.name)


class Training:
    """A model and its optimizer, with a record of the optimizer's events."""

    def __init__(self, rank: int, model: nn.Module | None = None, **options: Any) -> None:
        self.rank = rank
        self.model = model_of() if model is None else model
        self.optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(self.model.parameters(), lr=0.01), **options)
        self.exchange = self.optimizer._distributed.exchange
        self.exchange._progress.__class__ = Recorded
        self.exchange._progress.events = []

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.full((2, 6), float(self.rank + 1))).square().sum()
        return loss

    def backward(self) -> None:
        self.loss().backward()

    @property
    def state(self) -> StepState:
        state: StepState = self.exchange._progress.state
        return state

    def events(self) -> str:
        """The events since the last call."""
        events: list[str] = self.exchange._progress.events
        self.exchange._progress.events = []
        return " ".join(events)


PASS = "BEGIN COMPLETE EXCHANGED"


def test_steps_of_one_pass(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank)
        optimizer = training.optimizer
        for _ in range(3):
            optimizer.zero_grad()
            training.backward()
            assert training.state is StepState.AVERAGED
            optimizer.step()
            assert training.events() == f"{PASS} STEP"
        assert training.exchange.exchanges == 3
        # Without a backward.
        optimizer.zero_grad()
        optimizer.step()
        assert training.events() == "EXCHANGED STEP"
        # Twice synchronized, once exchanged.
        training.backward()
        optimizer.synchronize()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        assert training.events() == f"{PASS} STEP"
        # Gradients that zero_grad takes away before the step are exchanged once more, as none.
        training.backward()
        optimizer.zero_grad()
        optimizer.step()
        assert training.events() == f"{PASS} STEP EXCHANGED STEP"
        # synchronize() gives the step another pass.
        training.backward()
        optimizer.synchronize()
        training.backward()
        optimizer.step()
        assert training.events() == f"{PASS} {PASS} STEP"
        # A closure is a separate step each time.
        optimizer.step(lambda: (optimizer.zero_grad(), training.backward()))
        assert training.events() == f"{PASS} STEP"
        assert_same_on_all_ranks(training.model)

    two_ranks.run(check)


def test_steps_of_several_passes(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank, backward_passes_per_step=2)
        optimizer = training.optimizer
        for _ in range(2):
            optimizer.zero_grad()
            training.backward()
            assert training.state is StepState.IDLE
            training.backward()
            optimizer.step()
            assert training.events() == f"BEGIN END {PASS} STEP"
        training.backward()
        optimizer.step()  # with one pass less
        assert training.events() == "BEGIN END EXCHANGED STEP"
        with optimizer.accumulating():
            for _ in range(rank):
                training.backward()
        assert training.events() == " ".join(["BEGIN END"] * rank)
        training.backward()
        training.backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step=2 times"):
            training.backward()
        assert training.events() == f"BEGIN END {PASS}"
        optimizer.set_backward_passes_per_step(None)
        assert training.events() == "STEP"
        training.backward()
        training.backward()
        optimizer.step()
        assert training.events() == f"{PASS} STEP {PASS} STEP"
        assert_same_on_all_ranks(training.model)

    two_ranks.run(check)


class Fails(torch.autograd.Function):
    """Raises in backward if requested."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.fails:
            raise ZeroDivisionError
        return gradient, None


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])  # each gradient is sent at once, or none before the end
def test_a_backward_that_raises(two_ranks: RankPool, bucket_bytes: int) -> None:
    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        training = Training(rank)
        model: Any = training.model

        def backward(fails: bool) -> None:
            model[2:](Fails.apply(model[:2](torch.ones(2, 6)), fails)).sum().backward()

        backward(False)
        training.optimizer.step()
        training.events()
        if rank == 0:
            with pytest.raises(ZeroDivisionError):
                backward(True)
            assert training.events() == "BEGIN RAISE"
            assert training.state is StepState.IDLE
            assert training.exchange._membership.plan.in_flight == (bucket_bytes == 1)
        backward(False)
        training.optimizer.step()
        assert training.events() == f"{PASS} STEP"
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_a_gradient_that_is_used_twice(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank)

        def backward(times: int) -> None:
            hidden = torch.ones(2, 6, requires_grad=True)
            loss: Any = 0.0
            for _ in range(times):
                loss = loss + checkpoint(training.model, hidden, use_reentrant=True).sum()
            loss.backward()

        for _ in range(2):
            backward(2)
            training.optimizer.step()
            assert training.events() == "BEGIN SUSPEND RESUME COMPLETE EXCHANGED STEP"
        assert training.exchange._membership.plan.repeats
        assert_same_on_all_ranks(training.model)

    two_ranks.run(check)


class TrainsInside(torch.autograd.Function):
    """Runs a backward over a model in its own backward, and raises after it if requested."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, model: nn.Module, fails: bool) -> torch.Tensor:
        ctx.model, ctx.fails = model, fails
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            ctx.model(torch.ones(2, 6)).sum().backward()
        if ctx.fails:
            raise ZeroDivisionError
        return gradient, None, None


def test_a_backward_inside_another_one_and_a_graph_that_is_collected(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank)
        optimizer = training.optimizer

        def outer(fails: bool) -> torch.Tensor:
            hidden = torch.ones(2, requires_grad=True)
            return TrainsInside.apply(hidden, training.model, fails).sum()  # type: ignore[no-any-return,no-untyped-call]

        outer(False).backward()
        assert training.state in (StepState.SUSPENDED, StepState.AVERAGED)
        optimizer.step()
        assert training.events().startswith("BEGIN SUSPEND")
        loss = outer(True)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        assert training.state is StepState.SUSPENDED  # it is not reported
        del loss
        gc.collect()
        training.backward()  # this is another pass, and knows that the one before has raised
        optimizer.step()
        assert training.events() == f"BEGIN SUSPEND RAISE {PASS} STEP"
        outer(False).backward()
        optimizer.synchronize()
        optimizer.zero_grad()
        assert training.state is StepState.IDLE
        assert_same_on_all_ranks(training.model)

    two_ranks.run(check)


def test_a_step_in_the_middle_of_a_pass(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        # As in "optimizer step in backward": a hook steps as soon as its parameter's gradient is complete.
        layers = [nn.Linear(3, 3, bias=False) for _ in range(2)]
        with torch.no_grad():
            for layer in layers:
                layer.weight.fill_(1.0)
        trainings = [Training(rank, layer) for layer in layers]
        for training in trainings:
            step_in_hook(training.optimizer, training.model.weight)  # type: ignore[arg-type]
        for _ in range(3):
            nn.Sequential(*layers)(torch.full((1, 3), float(rank + 1))).sum().backward()
            for training in trainings:
                assert training.state is StepState.IDLE
                assert training.events() == "BEGIN EXCHANGED STEP END"
        for training in trainings:
            assert_same_on_all_ranks(training.model)

    two_ranks.run(check)


class Distances(nn.Module):
    """The distance of three parameters to its inputs; backward needs no parameter, so hooks may change them."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.ParameterList([torch.full((3,), float(number)) for number in range(3)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([(point - inputs[0, :3]).square().sum() for point in self.points]).sum().sqrt()


def step_in_hook(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> None:
    """Adds "optimizer step in backward", as users write it."""
    # PyTorch never frees an optimizer that a hook of its parameter keeps: the ranks of later tests would have it, too.
    reference: Any = weakref.proxy(optimizer)

    def step(param: torch.Tensor) -> None:
        reference.step()
        reference.zero_grad()

    param.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])  # each gradient is sent at once, or none before the step
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_hook_that_steps_in_each_pass(two_ranks: RankPool, op: int, bucket_bytes: int) -> None:
    passes = 4

    def check(rank: int) -> None:
        init_with_buckets_of(bucket_bytes)
        for position in range(3):  # of the hook's parameter: 2 is the first that a backward reaches
            training = Training(rank, Distances(), op=op)
            step_in_hook(training.optimizer, training.model.points[position])  # type: ignore[index,arg-type]
            # The same in one process, whose loss is the mean or the sum of the losses of both ranks.
            model = Distances()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            step_in_hook(optimizer, model.points[position])
            for _ in range(passes):
                training.backward()
                losses = [model(torch.full((2, 6), float(number + 1))).square() for number in range(2)]
                torch.stack(losses).sum().mul(0.5 if op == hvd.Average else 1.0).backward()
            assert_same_on_all_ranks(training.model)
            for param, expected in zip(training.model.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(param, expected)
            assert training.exchange.exchanges == passes
            assert training.state is StepState.IDLE

    two_ranks.run(check)


def test_hooks_that_synchronize_and_step_in_one_pass(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank, Distances())
        points: Any = training.model.points
        optimizer: Any = weakref.proxy(training.optimizer)
        points[2].register_post_accumulate_grad_hook(lambda param: optimizer.synchronize())
        step_in_hook(training.optimizer, points[0])
        for _ in range(3):
            training.backward()
            assert_same_on_all_ranks(training.model)
        assert training.exchange.exchanges == 6

    two_ranks.run(check)


def test_unused_parameters_and_ranks_that_disagree(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank, Branches())
        branches: Any = training.model
        for _ in range(2):
            training.optimizer.zero_grad()
            branches(torch.ones(2, 4), "left" if rank else "right").sum().backward()
            training.optimizer.step()
            assert training.events() == f"{PASS} STEP"
        other = Training(rank, nn.Linear(6, 1 + rank))
        with pytest.raises(MismatchError):
            other.backward()
        assert other.state is StepState.IDLE
        assert other.events() == "BEGIN COMPLETE FAIL"
        assert not other.exchange._membership.plan.agreed

    two_ranks.run(check)


def test_a_process_set(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        pair = hvd.ProcessSet([0, 1])
        hvd.init(process_sets=[pair])
        if rank < 2:
            training = Training(rank, process_set=pair)
            for _ in range(2):
                training.backward()
                training.optimizer.step()
            assert training.events() == f"{PASS} STEP {PASS} STEP"
            assert training.exchange.exchanges == 2

    three_ranks.run(check)


def test_an_undocumented_transition_is_an_internal_error(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        training = Training(rank)
        with pytest.raises(SparkEstimatorError, match="Internal error"):
            training.exchange.note_backward_ended()

    two_ranks.run(check)
