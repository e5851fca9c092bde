"""Tensors as the engine reads them: type, order, device, and which share memory."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedParameter

import spark_estimator.torch as hvd
from spark_estimator.torch.collectives import memory
from spark_estimator.torch.collectives.memory import find_overlapping
from tests.torch.rank_pool import RankPool


def test_which_tensors_overlap() -> None:
    memory = torch.zeros(20)
    parts = [memory[:5], memory[5:10], memory[9:12], memory[12:12], memory[12:20:3], memory[13:14], torch.ones(3)]
    assert find_overlapping(parts) == {id(parts[number]) for number in (1, 2, 4, 5)}
    assert find_overlapping(parts[:2]) == set()
    assert find_overlapping([parts[0], parts[0]]) == {id(parts[0])}
    assert find_overlapping([memory, *parts]) == {id(memory), *(id(parts[number]) for number in (0, 1, 2, 4, 5))}


def test_forward_mode_and_transforms_are_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
            for call in (hvd.allreduce, hvd.allgather, hvd.allreduce_, hvd.reducescatter):
                with pytest.raises(ValueError, match=rf"on rank {rank}: .*forward-mode tangent.*make_dual"):
                    call(dual)
            assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
        for transform in (torch.func.grad, torch.func.vmap):
            with pytest.raises(ValueError, match=rf"on rank {rank}: .*tensors inside torch\.func"):
                transform(lambda x: hvd.allreduce(x).sum())(torch.ones(2))
        assert hvd.allreduce(torch.func.grad(lambda x: (x * rank).sum())(torch.ones(2))).tolist() == [0.5, 0.5]

    two_ranks.run(check)


def test_a_dense_tensor_is_its_own_wire_form() -> None:
    tensor = torch.ones(2, 3)
    assert memory.to_wire_form(tensor, "allreduce").data_ptr() == tensor.data_ptr()
    transposed = torch.arange(6.0).view(2, 3).t()
    wire = memory.to_wire_form(transposed, "allreduce")
    assert wire.is_contiguous() and torch.equal(wire, transposed) and wire.data_ptr() != transposed.data_ptr()
    negated = torch._neg_view(tensor)
    assert memory.to_wire_form(negated, "allreduce").tolist() == [[-1.0] * 3] * 2
    assert not memory.to_wire_form(torch.ones(1, requires_grad=True), "allreduce").requires_grad


def test_what_has_no_wire_form() -> None:
    for thing, text in (
        ([1.0], r"a torch\.Tensor is needed, not list \(\[1\.0\]\)"),
        (torch.ones(1, dtype=torch.complex64), r"type torch\.complex64 cannot be sent; supported types: uint8, "),
        (torch.eye(2).to_sparse(), r"a dense tensor is needed, not one of layout torch\.sparse_coo"),
        (torch.ones(2, device="meta"), r"of shape \(2,\) on device 'meta' has no values to send"),
    ):
        with pytest.raises(ValueError, match=f"allreduce.*: .*{text}"):
            memory.to_wire_form(thing, "allreduce")


def test_results_go_back_into_the_tensor() -> None:
    tensor = torch.zeros(2, 3).t()
    wire = memory.to_writable_wire_form(tensor, "allreduce_")
    wire.copy_(torch.arange(6.0).view(3, 2))
    assert memory.write_back(wire, tensor) is tensor
    assert tensor.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match=r"shape \(4,\) and strides \(0,\)\. Use tensor\.contiguous\(\)"):
        memory.to_writable_wire_form(torch.ones(1).expand(4), "allreduce_")


def test_memory_of_one_tensor_alone() -> None:
    tensor = torch.ones(4)
    assert memory.is_alone(tensor)
    part = tensor[:2]
    assert not memory.is_alone(tensor) and not memory.is_alone(part)
    del part
    assert memory.is_alone(tensor)
    array = numpy.ones(3, numpy.float32)
    both = [torch.from_numpy(array), torch.from_numpy(array)]
    assert all(map(memory.is_alone, both)) and find_overlapping(both) == set(map(id, both))


def test_elements_in_one_place() -> None:
    assert memory.overlaps_itself(torch.ones(1).expand(4))
    assert not memory.overlaps_itself(torch.ones(1, 1).expand(1, 1))
    assert not memory.overlaps_itself(torch.ones(2, 2).t())


def test_addresses_for_the_engine() -> None:
    source, target = torch.ones(2, 3, dtype=torch.float16), torch.empty(2, 3)
    described = memory.make_wire_tensor(source, target)
    assert (described.input, described.output) == (source.data_ptr(), target.data_ptr())
    assert tuple(described.shape) == (2, 3)
    assert memory.make_wire_tensor(source).output == source.data_ptr()


def test_parameters_that_cannot_be_sent() -> None:
    memory.check_parameter("weight", torch.ones(2), "DistributedOptimizer")
    with pytest.raises(ValueError, match="'weight' has no shape yet, as its module is lazy"):
        memory.check_parameter("weight", UninitializedParameter(), "DistributedOptimizer")
