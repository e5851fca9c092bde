"""The plan of an exchange: buckets of all parameters, compared by the ranks before one is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator._native import ReduceOp
from spark_estimator.errors import MismatchError
from spark_estimator.torch.compression import Compression
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.plan import GradientPlan
from spark_estimator.torch.optimizer.slot import Slot
from spark_estimator.torch.optimizer.sparse_bucket import SparseBucket
from tests.torch.rank_pool import RankPool


def plan_of(shapes: list[tuple[int, ...]], groups: Any = None, *, sparse_as_dense: bool = False) -> GradientPlan:
    slots = [Slot(nn.Parameter(torch.zeros(shape)), f"layer.{number}") for number, shape in enumerate(shapes)]
    if groups == "apart":
        groups = [[slot.param] for slot in slots]
    return GradientPlan("plan", slots, Options(Compression.none, ReduceOp.AVERAGE, 1.0, groups, sparse_as_dense), 1)


def test_each_parameter_has_one_bucket(job_of_one: None) -> None:
    for groups, count in ((None, 1), (2, 2), ("apart", 3)):
        plan = plan_of([(3,), (4, 2), (5,)], groups)
        assert len(plan.buckets) == count
        assert plan.bucket_of.keys() == {id(slot.param) for slot in plan.slots}
        assert sum(len(bucket.slots) for bucket in plan.buckets) == 3


def test_an_exchange_begins_and_ends(job_of_one: None) -> None:
    plan = plan_of([(3,), (2,)], "apart")
    plan.slots[0].param.grad = torch.ones(3)
    assert not plan.agreed and not plan.in_flight
    plan.buckets[0].submit()
    assert plan.in_flight
    plan.detach_submitted()
    plan.exchange(lambda: None)
    assert plan.agreed and plan.in_flight and not plan.interrupted_by
    plan.forget()
    assert not plan.in_flight
    plan.must_agree()
    assert not plan.agreed


def test_sparse_gradients_get_buckets_of_their_own(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for as_dense in (False, True):
            plan = plan_of([(4, 2), (3,)], sparse_as_dense=as_dense)
            if rank == 0:
                plan.slots[0].param.grad = torch.sparse_coo_tensor([[1]], [[2.0, 2.0]], (4, 2))
            changes: list[bool] = []
            plan.exchange(lambda changes=changes: changes.append(True))  # type: ignore[misc]
            assert bool(changes) is not as_dense
            assert sum(isinstance(bucket, SparseBucket) for bucket in plan.buckets) == (not as_dense)
            gradient = plan.slots[0].param.grad
            assert gradient is not None and gradient.to_dense()[1].tolist() == [1.0, 1.0]

    two_ranks.run(check)


def test_ranks_with_different_parameters(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        plan = plan_of([(3,), (4 + rank,)])
        with pytest.raises(MismatchError, match=r"parameters of DistributedOptimizer.*layer\.1"):
            plan.exchange(lambda: None)
        assert not plan.agreed

    two_ranks.run(check)
