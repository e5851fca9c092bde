"""Optimizer state divided among the ranks: the same training, a share of the memory, checkpoints that are whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from spark_estimator.torch.optimizer.sharded_state import ShardedState
from tests.torch.optimizer.test_options import EVERY
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    assert_close,
    assert_same_on_all_ranks,
    batches,
    model_of,
    own_rows,
    trained_alone,
)

ELEMENTWISE = [kind for kind in EVERY if kind not in ("Adafactor", "Muon")]


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.nbytes
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor) and value.dim()
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: slice = slice(None), size: int = 2) -> None:
    for inputs, targets in batches(size=size)[steps]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_trains_as_in_one_process(two_ranks: RankPool, kind: str) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(parameters, **EVERY[kind])
        return optimizer

    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), shard_state=True)
        train(model, optimizer)
        if kind != "Rprop":  # steps by signs, which rounding may turn
            assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)
        assert [len(group["params"]) for group in optimizer.param_groups] == [6]

    two_ranks.run(check)


def test_each_rank_holds_its_share(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        total_bytes = sum(parameter.nbytes for parameter in model.parameters())
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_state=True)
        train(model, optimizer, slice(2), size=3)
        assert abs(state_bytes(optimizer) - 2 * total_bytes / 3) < 100
        assert sum(hvd.allgather_object(state_bytes(optimizer))) == 2 * total_bytes
        assert all(parameter.grad is not None for parameter in model.parameters())

    three_ranks.run(check)


def test_checkpoints_are_whole_and_go_on_anywhere(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def wrapped(shard: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
            model = model_of()
            adam = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
            return model, hvd.DistributedOptimizer(adam, shard_state=shard)

        reference, plain = wrapped(shard=False)
        train(reference, plain, size=3)
        model, optimizer = wrapped(shard=True)
        train(model, optimizer, slice(10), size=3)
        with pytest.raises(RuntimeError, match=rf"rank {rank} has only its share\. Call .*consolidate_state_dict"):
            optimizer.state_dict()
        with pytest.raises(ValueError, match=r"root rank 0's optimizer .* is divided among"):
            hvd.broadcast_optimizer_state(optimizer, 0)
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(optimizer)
        optimizer.consolidate_state_dict(to=1)  # type: ignore[attr-defined]
        checkpoint = (model.state_dict(), optimizer.state_dict()) if rank == 1 else None
        checkpoint = copy.deepcopy(checkpoint)
        if rank == 1:
            assert checkpoint is not None
            states = checkpoint[1]["state"]
            assert [tuple(states[number]["exp_avg"].shape) for number in range(2)] == [(16, 6), (16,)]
        # It continues unsharded; sharded, loaded by all; and sharded, loaded by one that broadcasts it.
        for shard, loaded_by in ((False, (0, 1, 2)), (True, (0, 1, 2)), (True, (1,))):
            saved = copy.deepcopy(hvd.broadcast_object(checkpoint, root_rank=1))
            again, resumed = wrapped(shard)
            if rank in loaded_by:
                again.load_state_dict(saved[0])
                resumed.load_state_dict(saved[1])
            hvd.broadcast_parameters(again.state_dict(), 1)
            hvd.broadcast_optimizer_state(resumed, 1)
            train(again, resumed, slice(10, None), size=3)
            assert_close(again, reference)
            assert_same_on_all_ranks(again)
        # One rank restores a checkpoint in the middle of training, and with it the others.
        saved = copy.deepcopy(hvd.broadcast_object(checkpoint, root_rank=1))
        train(model, optimizer, slice(10, 13), size=3)
        if rank == 1:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        hvd.broadcast_parameters(model.state_dict(), 1)
        hvd.broadcast_optimizer_state(optimizer, 1)
        train(model, optimizer, slice(10, None), size=3)
        assert_close(model, reference)
        # A consolidated state is of its moment.
        train(model, optimizer, slice(10, 11), size=3)
        with pytest.raises(RuntimeError, match="only its share"):
            optimizer.state_dict()

    three_ranks.run(check)


def test_closures_clipping_scaling_unused_and_odd_parameters(two_ranks: RankPool) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.scale = nn.Parameter(torch.ones(()))
            self.single = nn.Parameter(torch.ones(1))
            self.empty = nn.Parameter(torch.ones(0, 3))
            self.unused = nn.Parameter(torch.ones(5))
            self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.conv(inputs).sum(dim=(2, 3)) * self.scale * self.single * self.wide + self.empty.sum()

    def check(rank: int) -> None:
        reference, model = Odd(), Odd()
        alone = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), shard_state=True
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        alone_scheduler = torch.optim.lr_scheduler.StepLR(alone, 1, 0.9)
        inputs = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(1))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs[2 * rank : 2 * rank + 2]).square().mean()
            loss.backward()
            assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5
            return loss

        def fails() -> torch.Tensor:
            closure()
            raise OSError("no data")

        for step in range(4):
            alone.zero_grad()
            reference(inputs).square().mean().backward()
            nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            alone.step()
            alone_scheduler.step()
            if step % 2:
                optimizer.step(closure)
            else:
                with pytest.raises(OSError, match="no data"):
                    optimizer.step(fails)
                closure()
                optimizer.step()
            scheduler.step()
        assert_close(model, reference)
        assert_same_on_all_ranks(model)
        assert torch.equal(model.unused, torch.ones(5))
        model_new = nn.Linear(2, 2)
        hvd.broadcast_parameters(model_new.state_dict(), 0)
        optimizer.add_param_group({"params": list(model_new.parameters())})
        optimizer.zero_grad()
        model_new(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(model_new)
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][1:]
        with pytest.raises(ValueError, match="group 0 has other parameters"):
            optimizer.step()

    two_ranks.run(check)


def test_what_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        for kind in ("Adafactor", "LBFGS"):
            with pytest.raises(ValueError, match=f"element-wise .*; {kind} is not one of them"):
                hvd.DistributedOptimizer(getattr(torch.optim, kind)(model.parameters()), shard_state=True)
        with pytest.raises(ValueError, match="Adasum"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), op=hvd.Adasum, shard_state=True)
        strided = nn.Parameter(torch.ones(4, 4)[:, :2])
        with pytest.raises(ValueError, match=r"dense in memory; one has shape \(4, 2\) and strides \(4, 1\)"):
            hvd.DistributedOptimizer(torch.optim.SGD([strided]), shard_state=True)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters()), shard_state=True)
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(ValueError, match="sparse gradients"):
            optimizer.step()
        with pytest.raises(ValueError, match=r"to=7\): the ranks are \[0, 1\]"):
            optimizer.consolidate_state_dict(to=7)  # type: ignore[attr-defined]

    two_ranks.run(check)


def test_a_gradient_that_some_ranks_have_cleared(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shard_state=True)
        model(torch.ones(1, 6)).sum().backward()
        if rank == 1:
            model[2].weight.grad = None
        with pytest.raises(MismatchError, match=r"rank 0 has a gradient for parameter 2 \(of shape .* rank 1 has none"):
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), model_of().parameters()))
        assert [len(group["params"]) for group in optimizer.param_groups] == [6]
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert not any(map(torch.equal, model.parameters(), model_of().parameters()))

    two_ranks.run(check)


def test_a_step_that_not_all_ranks_take_changes_nothing(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_state=True)
        for batch in range(2 - rank):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            if batch == 0:
                optimizer.step()
                continue
            before = [param.clone() for param in model.parameters()]
            with pytest.raises(MismatchError, match=r"no parameters changed: .* rank 1 has called join"):
                optimizer.step()
            assert all(map(torch.equal, model.parameters(), before))
            assert [len(group["params"]) for group in optimizer.param_groups] == [6]
        hvd.join()

    two_ranks.run(check)


class Fails(torch.optim.Adam):
    """Raises in its step when `fails`."""

    fails = False

    def _init_group(self, *args: Any) -> Any:
        if self.fails:
            raise OSError("in the step")
        return super()._init_group(*args)  # type: ignore[no-untyped-call]


def test_a_step_that_a_hook_or_the_step_itself_has_ended(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        adam = Fails(model.parameters(), lr=0.01)
        where = ""

        def hook(optimizer: torch.optim.Optimizer, phase: str) -> None:
            params = optimizer.param_groups[0]["params"]
            assert all(ours is theirs for ours, theirs in zip(params, model.parameters(), strict=True))
            if phase == where:
                raise OSError(f"in a hook {phase}")

        adam.register_step_pre_hook(lambda optimizer, *_: hook(optimizer, "before, made before"))
        adam.register_step_post_hook(lambda optimizer, *_: hook(optimizer, "after, made before"))
        optimizer = hvd.DistributedOptimizer(adam, shard_state=True)
        optimizer.register_step_pre_hook(lambda optimizer, *_: hook(optimizer, "before, made after"))
        optimizer.register_step_post_hook(lambda optimizer, *_: hook(optimizer, "after, made after"))
        reference = model_of()
        alone = torch.optim.Adam(reference.parameters(), lr=0.01)
        hooks = [f"{at}, made {when}" for at in ("before", "after") for when in ("before", "after")]
        for number, place in enumerate(["", *hooks, "step", ""]):
            for each in (model, reference):
                each.zero_grad()
                each(torch.full((1, 6), 1.0 + number)).sum().backward()
            where, optimizer.fails = place, place == "step"
            if place:
                with pytest.raises(OSError, match="in "):
                    optimizer.step()
            else:
                optimizer.step()
            if place.startswith("after") or not place:
                alone.step()
            assert_close(model, reference)
            assert_same_on_all_ranks(model)
            if place != "step":
                assert [id(param) for param in optimizer.param_groups[0]["params"]] == [*map(id, model.parameters())]

    two_ranks.run(check)


def test_a_state_that_was_divided_among_other_ranks_is_refused(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0])]
        if rank == 0:
            model = model_of()
            adam = torch.optim.Adam(model.parameters())
            shards = ShardedState(adam, sets[1])
            model(torch.ones(1, 6)).sum().backward()
            shards.enter()
            adam.step()
            shards.leave()
            # As after shutdown() and init() in a job of another size.
            shards._process_set = sets[0]
            with pytest.raises(ValueError, match="divided among 1 ranks of a job that has ended, and there are 2 now"):
                shards.enter()
            shards.forget()
        elif rank == 1:
            model = model_of()
            adam = torch.optim.Adam(model.parameters())
            shards = ShardedState(adam, sets[0])
            model(torch.ones(1, 6)).sum().backward()
        if rank < 2:
            shards.enter()
            assert [len(group["params"]) for group in adam.param_groups] == [6]
            shards.restore()
        hvd.barrier()
        hvd.shutdown()
        hvd.init()

    three_ranks.run(check)


def test_alone_there_is_nothing_to_divide() -> None:
    hvd.init()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard_state=True)
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict()  # type: ignore[attr-defined]
    assert len(optimizer.state_dict()["state"]) == 6
    hvd.shutdown()


@pytest.mark.parametrize("kind", ["Adagrad", "Adam", "SGD"])
def test_a_parameter_that_is_a_single_number(three_ranks: RankPool, kind: str) -> None:
    """Its state has the shape of a count of steps; also through a checkpoint. One rank steps it."""

    def made(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(params, **EVERY[kind])
        return optimizer

    def check(rank: int) -> None:
        ours, alone = ([nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(4))] for _ in range(2))
        optimizer, single = hvd.DistributedOptimizer(made(ours), shard_state=True), made(alone)
        for step in range(4):
            for params, each in ((ours, optimizer), (alone, single)):
                each.zero_grad()
                (params[0] * params[1].square()).sum().backward()
                each.step()
            if step == 1:
                optimizer.consolidate_state_dict(0)
                total_bytes = optimizer.state_dict() if rank == 0 else None
                optimizer.load_state_dict(hvd.broadcast_object(total_bytes, 0))
        for first, second in zip(ours, alone, strict=True):
            torch.testing.assert_close(first, second)

    three_ranks.run(check)
