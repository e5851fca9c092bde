"""Tensors and reductions of torch.distributed as the engine takes them: flat, of known types."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import ReduceOp as TorchReduceOp

from spark_estimator._native import ReduceOp
from spark_estimator.extensions.process_group import elements


def test_reductions() -> None:
    assert elements.convert_reduction(TorchReduceOp.AVG) == elements.ElementReduction(ReduceOp.AVERAGE)
    assert elements.convert_reduction(TorchReduceOp(TorchReduceOp.MAX)).op is ReduceOp.MAX
    bitwise = elements.convert_reduction(TorchReduceOp.BXOR).bitwise
    assert bitwise is not None and bitwise(torch.tensor([6]), torch.tensor([3])).tolist() == [5]
    premultiplied = elements.convert_reduction(torch.distributed._make_nccl_premul_sum(0.5))
    assert premultiplied == elements.ElementReduction(ReduceOp.SUM, 0.5)
    with pytest.raises(ValueError, match="PREMUL_SUM takes one factor"):
        elements.convert_reduction(TorchReduceOp.PREMUL_SUM)
    with pytest.raises(ValueError, match="is not supported by this backend: use SUM"):
        elements.convert_reduction("sum")


def test_tensors_of_several_types() -> None:
    assert elements.check_same_type([torch.ones(1), torch.ones(2)], "all_gather") is torch.float32
    with pytest.raises(ValueError, match=r"all_gather takes tensors of one element type, not of \['torch\.float32'"):
        elements.check_same_type([torch.ones(1), torch.ones(1, dtype=torch.int32)], "all_gather")


def test_flat_tensors() -> None:
    tensor = torch.ones(2, 3)
    assert elements.flatten(tensor, "broadcast").data_ptr() == tensor.data_ptr()
    assert elements.flatten(torch.ones(2, dtype=torch.complex64), "all_reduce").tolist() == [1.0, 0.0, 1.0, 0.0]
    moved = elements.flatten(torch.ones(2, dtype=torch.float8_e5m2), "broadcast", moved=True)
    assert moved.dtype is torch.uint8 and moved.numel() == 2
    with pytest.raises(ValueError, match="cannot be sent"):
        elements.flatten(torch.ones(2, dtype=torch.float8_e5m2), "all_reduce")
    assert elements.flatten_all([torch.ones(1), torch.zeros(2, 1)], "all_gather").tolist() == [1.0, 0.0, 0.0]


def test_results_are_put_into_tensors() -> None:
    target = torch.zeros(2, 3).t()
    assert elements.put(torch.arange(6.0), target) is target
    assert target.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match=r"5 elements came for a tensor of shape \(3, 2\)"):
        elements.put(torch.ones(5), target)
    number = torch.zeros(1, dtype=torch.complex64)
    elements.put(torch.tensor([1.0, 2.0]), number)
    assert number.item() == 1 + 2j


def test_what_each_rank_gave_is_shared_out() -> None:
    outputs = [torch.zeros(1), torch.zeros(2)]
    elements.distribute("all_gather", torch.arange(3.0), (1, 2), outputs)
    assert [output.tolist() for output in outputs] == [[0.0], [1.0, 2.0]]
    with pytest.raises(ValueError, match="all_gather: from rank 0 of the group 2 elements came for"):
        elements.distribute("all_gather", torch.arange(3.0), (2, 1), outputs)


def test_parts_for_each_rank() -> None:
    rows = torch.arange(6).view(3, 2)
    assert [len(part) for part in elements.split_rows(rows, [0, 3], 2, "input")] == [0, 3]
    assert [len(part) for part in elements.split_rows(rows, [], 3, "input")] == [1, 1, 1]
    with pytest.raises(ValueError, match="the output's 3 rows cannot be divided into 2 equal parts"):
        elements.split_rows(rows, [], 2, "output")
    for splits in ([3], [1, 1], [4, -1]):
        with pytest.raises(ValueError, match=r"input_split_sizes=.* for 3 rows and 2 ranks"):
            elements.split_rows(rows, splits, 2, "input")


def test_memory_that_is_shared() -> None:
    memory = torch.zeros(4)
    assert elements.has_overlap([memory[:3], memory[2:]])
    assert not elements.has_overlap([memory[:2], memory[2:], memory[2:2]])


def test_lists_of_tensors() -> None:
    tensor = torch.ones(1)
    assert elements.to_list(tensor) == [tensor] == elements.to_list([tensor])
    assert elements.to_lists([tensor]) == [[tensor]] == elements.to_lists([[tensor]])
    assert elements.get_only([tensor], "send") is tensor
    with pytest.raises(ValueError, match="send takes one tensor at a time, not 2"):
        elements.get_only([tensor, tensor], "send")
    with pytest.raises(ValueError, match="scatter: 1 tensors were given for the 2 ranks of the group"):
        elements.check_one_each("scatter", [tensor], 2)
