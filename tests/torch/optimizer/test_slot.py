"""A parameter's part in an exchange: what can be sent unchanged, and where the average is written."""

from __future__ import annotations

import torch
from torch import nn

from spark_estimator.torch.optimizer.slot import Slot, find_memory_order


def slot_with(gradient: torch.Tensor | None, *shape: int) -> Slot:
    param = nn.Parameter(torch.zeros(shape))
    param.grad = gradient
    return Slot(param, "weight")


def test_a_gradient_that_is_alone_travels_as_it_is() -> None:
    gradient = torch.ones(2, 3)
    slot = slot_with(gradient, 2, 3)
    del gradient
    taken = slot.take()
    assert taken is not None and not slot.parted and slot.fits(taken)
    assert not slot.fits(taken.double())
    assert not slot.fits(taken.t().contiguous().t())  # another order in memory
    assert not slot.fits(torch._neg_view(taken))
    assert not slot.fits(taken.to_sparse())


def test_an_average_of_shared_memory_gets_memory_of_its_own() -> None:
    memory = torch.ones(6)
    slot = slot_with(memory[:3], 3)
    gradient = slot.take()
    assert gradient is not None and slot.parted and not slot.fits(gradient)
    wire = slot.copy_gradient("cpu", torch.float32)
    wire.fill_(5.0)
    slot.put_back(wire)
    assert slot.param.grad is not None and slot.param.grad.tolist() == [5.0] * 3
    assert memory.tolist() == [1.0] * 6


def test_an_average_goes_into_the_gradient_s_memory_otherwise() -> None:
    slot = slot_with(torch.ones(3), 3)
    gradient = slot.take()
    slot.put_back(torch.full((3,), 2.0))
    assert slot.param.grad is gradient and gradient is not None and gradient.tolist() == [2.0] * 3
    slot.forget()
    assert slot.gradient is slot.wire is slot.before is None


def test_zeros_travel_for_no_gradient() -> None:
    slot = slot_with(None, 2)
    assert slot.take() is None
    assert slot.copy_gradient("cpu", torch.float16).tolist() == [0.0, 0.0]


def test_a_sparse_gradient_travels_dense_and_comes_back_sparse() -> None:
    slot = slot_with(torch.sparse_coo_tensor([[1]], [[3.0, 4.0]], (3, 2)), 3, 2)
    slot.take()
    wire = slot.copy_gradient("cpu", torch.float32)
    assert wire.tolist() == [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]
    slot.put_back(wire * 2)
    assert slot.param.grad is not None and slot.param.grad.layout is torch.sparse_coo
    assert slot.param.grad.sparse_dim() == 1
    assert slot.param.grad.to_dense()[1].tolist() == [6.0, 8.0]


def test_the_order_of_elements() -> None:
    assert find_memory_order((2, 1, 3), (3, 3, 1)) == find_memory_order((2, 1, 3), (3, 99, 1)) == (3, 1)
    weight = nn.Parameter(torch.zeros(2, 3).t())
    assert Slot(weight, "weight").order == (1, 3)
