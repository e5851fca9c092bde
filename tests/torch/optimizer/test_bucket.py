"""Buckets of dense gradients: once handed over in an exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator._native import ReduceOp
from spark_estimator.torch.compression import Compression
from spark_estimator.torch.optimizer.bucket import DenseBucket, Options
from spark_estimator.torch.optimizer.slot import Slot
from tests.torch.rank_pool import RankPool


def options(**changes: Any) -> Options:
    return Options(Compression.none, ReduceOp.AVERAGE, 1.0, None, False, **changes)


def slots_of(*gradients: torch.Tensor | None) -> list[Slot]:
    slots = []
    for number, gradient in enumerate(gradients):
        param = nn.Parameter(torch.zeros(3))
        param.grad = gradient
        slots.append(Slot(param, f"layer.{number}"))
    return slots


def test_a_bucket_is_submitted_once_in_an_exchange(job_of_one: None) -> None:
    slots = slots_of(torch.ones(3), torch.full((3,), 2.0))
    bucket = DenseBucket("bucket", slots, options())
    gradients = [slot.param.grad for slot in slots]
    for _ in range(2):
        assert not bucket.submitted and bucket.missing == {id(slot.param) for slot in slots}
        bucket.submit()
        handle = bucket._handle
        bucket.submit()
        assert bucket.submitted and bucket._handle is handle
        bucket.finish()
        bucket.forget()
    # Float32 gradients are sent in their own memory, with one flag each.
    assert bucket.bytes_given == (3 + 3 + 2) * 4
    for slot, gradient in zip(slots, gradients, strict=True):
        assert slot.param.grad is gradient


def test_gradients_that_some_ranks_do_not_have(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        slots = slots_of(torch.ones(3) if rank else None, None, torch.full((3,), 1.0 + rank))
        bucket = DenseBucket("bucket", slots, options())
        bucket.submit()
        bucket.finish()
        averages = [None if slot.param.grad is None else slot.param.grad.tolist() for slot in slots]
        assert averages == [[0.5] * 3, None, [1.5] * 3]

    two_ranks.run(check)


def test_parameters_can_be_parted_from_memory_in_flight(job_of_one: None) -> None:
    slots = slots_of(torch.ones(3))
    gradient = slots[0].param.grad
    bucket = DenseBucket("bucket", slots, options())
    bucket.submit()
    bucket.detach_gradients()
    assert slots[0].param.grad is None
    bucket.finish()
    assert slots[0].param.grad is gradient


def test_an_interrupt_while_a_bucket_is_handed_over(job_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = DenseBucket("bucket", slots_of(torch.ones(3)), options())

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bucket, "_submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bucket.submit()
    assert bucket.torn == "KeyboardInterrupt" and bucket.submitted
    bucket.forget()
    assert not bucket.torn and not bucket.submitted


def test_the_scales_of_a_predivided_average(job_of_one: None) -> None:
    assert options().scale_op() == (ReduceOp.AVERAGE, 1.0, 1.0)
    predivided = Options(Compression.none, ReduceOp.AVERAGE, 4.0, None, False)
    assert predivided.scale_op() == (ReduceOp.SUM, 0.25, 4.0)


def test_names_count_up(job_of_one: None) -> None:
    assert [options().make_name() for _ in range(2)] == ["DistributedOptimizer.0", "DistributedOptimizer.1"]
