"""Ranks of a job that has lost or gained some: nothing that was done is undone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.torch.elastic.state import TorchState
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_same_on_all_ranks


def made(value: float) -> tuple[nn.Linear, Any]:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model, hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), inner_steps=3)


def step(model: nn.Linear, optimizer: Any, gradient: float) -> None:
    optimizer.zero_grad()
    (model.weight * gradient).sum().backward()
    optimizer.step()


def next_round(state: TorchState) -> None:
    """The job continues with another membership, as `hvd.elastic.run` has it after a loss."""
    state.restore()
    hvd.shutdown()
    hvd.init()
    state.on_reset()
    state.sync()


def test_a_loss_between_two_exchanges_costs_no_rollback(three_ranks: RankPool) -> None:
    """Rank 2 is another process in the second round, without any state: the others keep their steps."""

    def check(rank: int) -> None:
        model, optimizer = made(0.0)
        state: Any = TorchState(model, optimizer, batch=0)
        state.commit()
        for state.batch in range(1, 6):  # the first three are exchanged, and two more are not
            step(model, optimizer, float(rank))
        weight, momentum = model.weight.detach().clone(), optimizer.state[model.weight]["momentum_buffer"].clone()
        if rank == 2:
            model, optimizer = made(7.0)
            state = TorchState(model, optimizer, batch=0)
        next_round(state)
        assert state.batch == 5
        if rank < 2:
            assert torch.equal(model.weight, weight)
            assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], momentum)
        step(model, optimizer, 0.0)  # the third step of the round: an exchange
        assert_same_on_all_ranks(model)
        # After three steps of gradient r all were at -(1 + 1.5 + 1.75) * mean(r); then ranks 0 and 1 moved on.
        anchor = -4.25
        moved = [-(1.875 + 1.9375 + 0.96875) * r for r in (0, 1)]
        expected = anchor + (moved[0] + moved[1] + 0.0) / 3
        torch.testing.assert_close(model.weight.detach(), torch.full((1, 2), expected), rtol=0, atol=1e-5)
        assert optimizer.outer_steps == 2

    three_ranks.run(check)


def test_a_rank_that_missed_an_exchange_takes_what_came_of_it(two_ranks: RankPool) -> None:
    """The job broke when rank 0 had the result of an exchange, and rank 1 had not."""

    def check(rank: int) -> None:
        model, optimizer = made(0.0)
        state: Any = TorchState(model, optimizer)
        for _ in range(3):
            step(model, optimizer, float(rank))
        rounds = optimizer._local_steps.rounds
        if rank == 1:  # as if nothing had arrived
            [fragment] = rounds.fragments
            fragment.version, fragment.anchors[0] = 0, torch.zeros(1, 2)
            with torch.no_grad():
                model.weight.fill_(-4.25)
        next_round(state)
        step(model, optimizer, 0.0)
        assert optimizer.outer_steps == 1
        assert torch.equal(rounds.fragments[0].anchors[0], torch.full((1, 2), -2.125))
        if rank == 1:  # its own part is in it, and its step since then, in which it has nothing but momentum, is not
            assert torch.equal(model.weight, torch.full((1, 2), -2.125))

    two_ranks.run(check)


def test_an_exchange_on_its_way_is_repeated(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer: Any = hvd.DiLoCo(
            torch.optim.SGD(model.parameters(), lr=1.0), inner_steps=3, delay=2, outer_lr=1.0, outer_momentum=0.0
        )
        state: Any = TorchState(model, optimizer)
        for _ in range(4):  # sent after the third, to be taken after the fifth
            step(model, optimizer, float(rank))
        hvd.barrier()  # else a rank that leaves early ends the exchange before the other has sent its part
        next_round(state)
        step(model, optimizer, float(rank))
        assert optimizer.outer_steps == 0
        optimizer.synchronize()
        assert model.weight.tolist() == [[-2.5, -2.5]]

    two_ranks.run(check)
