"""An optimizer's part in the present job: its name, and a plan that follows its parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator._native import ReduceOp
from spark_estimator.torch.compression import Compression
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.hooks import ParameterHooks
from spark_estimator.torch.optimizer.membership import JobMembership


class Listener:
    def note_gradient_complete(self, key: int) -> None: ...

    def note_gradient_again(self, key: int) -> None: ...

    def note_backward_ended(self) -> None: ...

    def note_backward_raised(self) -> None: ...


LISTENER = Listener()


def member(optimizer: torch.optim.Optimizer, names: dict[int, str] | None = None) -> JobMembership:
    options = Options(Compression.none, ReduceOp.AVERAGE, 1.0, None, False)
    return JobMembership(optimizer, names or {}, options, ParameterHooks(LISTENER), 1)


def test_the_plan_follows_the_parameters(job_of_one: None) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([first], lr=0.1)
    membership = member(optimizer, {id(first): "weight"})
    membership.refresh(1)
    plan = membership.plan
    membership.refresh(1)
    assert membership.plan is plan
    optimizer.add_param_group({"params": [second]})
    membership.refresh(1)
    assert [slot.name for slot in membership.plan.slots] == ["weight", "allreduce.noname.1.0"]
    first.requires_grad_(False)
    membership.refresh(1)
    assert [slot.param for slot in membership.plan.slots] == [second]
    second.data = second.data.double()
    membership.refresh(1)
    assert membership.plan.slots[0].dtype is torch.float64


def test_the_plan_follows_forms(job_of_one: None) -> None:
    param = nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1)), param], lr=0.1)
    membership = member(optimizer)
    membership.refresh(1)
    for changed in (param.data.t().contiguous(), param.data.half()):
        plan = membership.plan
        param.data = changed
        membership.refresh(1)
        assert membership.plan is not plan
        plan = membership.plan
        membership.refresh(1)
        assert membership.plan is plan


def test_a_parameter_that_a_newer_optimizer_has(job_of_one: None) -> None:
    first, shared = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    older, newest = torch.optim.SGD([first], lr=0.1), torch.optim.SGD([shared], lr=0.1)
    membership, newer = member(older), member(newest)
    membership.refresh(1)
    older.add_param_group({"params": [shared]})
    membership.refresh(1)
    plan = membership.plan
    assert [id(slot.param) for slot in plan.slots] == [id(first)]
    membership.refresh(1)
    assert membership.plan is plan
    newer.leave()
    membership.refresh(1)
    assert [id(slot.param) for slot in membership.plan.slots] == [id(first), id(shared)]


def test_a_plan_in_flight_stays(job_of_one: None) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    membership = member(optimizer)
    membership.refresh(1)
    plan = membership.plan
    plan.submit()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    membership.refresh(1)
    assert membership.plan is plan
    plan.exchange(lambda: None)
    plan.forget()
    membership.refresh(1)
    assert len(membership.plan.slots) == 2


def test_names_in_another_job_are_in_the_order_of_making(job_of_one: None) -> None:
    optimizers = [torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(3)]
    first, second, third = map(member, optimizers)
    assert [m.name.rpartition(".")[2] for m in (first, second, third)] == ["0", "1", "2"]
    first.leave()
    hvd.shutdown()
    hvd.init()
    third.exchanges = 5
    third.refresh(1)  # the others take their names, too
    assert [m.name.rpartition(".")[2] for m in (second, third)] == ["0", "1"]
    assert third.exchanges == 0


def test_parameters_of_other_optimizers(job_of_one: None) -> None:
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([param], lr=0.1) for param in params]
    first, second = map(member, optimizers)
    assert any(param is params[1] for param in first.list_others_trainable())
    assert not any(param is params[0] for param in first.list_others_trainable())
    second.leave()
    assert not any(param is params[1] for param in first.list_others_trainable())


def test_after_an_exchange_that_was_interrupted(job_of_one: None) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    membership = member(optimizer)
    membership.interrupted_by = "KeyboardInterrupt"
    with pytest.raises(hvd.HorovodInternalError, match="was interrupted on rank 0 by a KeyboardInterrupt"):
        membership.refresh(1)
    hvd.shutdown()
    hvd.init()
    membership.refresh(1)
    assert not membership.interrupted_by
