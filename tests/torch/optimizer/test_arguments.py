"""What DistributedOptimizer refuses before anything is changed."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator._native import ReduceOp
from spark_estimator.torch.optimizer import arguments
from tests.ranks import run_ranks


def test_parameters_of_an_optimizer(job_of_one: None) -> None:
    class Model(torch.nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.real = torch.nn.Parameter(torch.ones(2))
            self.other = torch.nn.Parameter(torch.ones(3, **options))

    for options, why in [
        ({"dtype": torch.complex128}, r"is of type torch\.complex128"),
        ({"device": "meta"}, r"of shape \(3,\) is on device 'meta'"),
    ]:
        model = Model(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for named, name in ((model.named_parameters(), "'other'"), (None, "'parameter 1 of group 0'")):
            with pytest.raises(ValueError, match=f"^DistributedOptimizer on rank 0: {name} {why}"):
                hvd.DistributedOptimizer(optimizer, named)
        assert type(optimizer) is torch.optim.SGD
        with pytest.raises(ValueError, match=f"^broadcast_optimizer_state on rank 0: 'group 0, parameter 1' {why}"):
            hvd.broadcast_optimizer_state(optimizer, 0)
        model.other.requires_grad_(False)  # parameters that are not trained are not sent
        hvd.DistributedOptimizer(optimizer, model.named_parameters())
    with pytest.raises(ValueError, match=r"named_parameters takes model.named_parameters\(\), or .*, not 5"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=5)  # type: ignore[arg-type]


def test_an_optimizer_made_in_a_forked_child_is_refused() -> None:
    def train(rank: int) -> None:
        hvd.init()
        param = nn.Parameter(torch.zeros(3))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(hvd.HorovodInternalError, match="was forked from a rank"):
                    hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    run_ranks(2, train)


def sgd(*sizes: int) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(size)) for size in sizes], lr=0.1)


def params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    params: list[torch.Tensor] = optimizer.param_groups[0]["params"]
    return params


def test_operations() -> None:
    assert arguments.check_op(int(ReduceOp.SUM)) is ReduceOp.SUM
    for op in (hvd.Min, hvd.Product, True, 99):
        with pytest.raises(ValueError, match=r": op=.*must be hvd\.Average, hvd\.Sum or hvd\.Adasum"):
            arguments.check_op(op)


def test_numbers_out_of_range() -> None:
    arguments.check_passes(1)
    for passes in (0, -1, 1.5, "2", None):
        with pytest.raises(ValueError, match=r"backward_passes_per_step=.* must be an integer greater than 0"):
            arguments.check_passes(passes)  # type: ignore[arg-type]
    arguments.check_predivide(2, ReduceOp.AVERAGE)
    arguments.check_predivide(1.0, ReduceOp.SUM)
    for factor in (0, -1.0, float("inf"), float("nan"), "2"):
        with pytest.raises(ValueError, match=r"gradient_predivide_factor=.* must be a number greater than 0"):
            arguments.check_predivide(factor, ReduceOp.AVERAGE)
    with pytest.raises(ValueError, match=r"gradient_predivide_factor=2\.0 requires op=hvd\.Average"):
        arguments.check_predivide(2.0, ReduceOp.SUM)


def test_named_parameters() -> None:
    optimizer = sgd(2, 3)
    first, second = params_of(optimizer)
    assert arguments.check_names(optimizer, None) == {}
    named = [("a", first), ("b", second)]
    assert arguments.check_names(optimizer, iter(named)) == {id(first): "a", id(second): "b"}
    for pairs, text in (
        ([("a", first), ("a", second)], "must be unique; given more than once: a"),
        ([("a", first)], r"does not name all .*: number 1 of group 0, of shape \(3,\), is missing"),
        ([first, second], r"must hold tuples \(name, parameter\)"),
    ):
        with pytest.raises(ValueError, match=text):
            arguments.check_names(optimizer, pairs)


def test_groups_of_parameters() -> None:
    optimizer = sgd(2, 3)
    first, second = params_of(optimizer)
    groups = [[first], [second]]
    assert arguments.check_groups(optimizer, groups) is groups
    assert arguments.check_groups(optimizer, 3) == 3
    for wrong, text in (
        (0, "groups=0 must be an integer greater than 0"),
        ([first], "or a list of lists of parameters"),
        ([["a"]], "groups must hold lists of parameters, not 'a'"),
        ([[first], [second, first]], r"a parameter of shape \(2,\) twice"),
        ([[torch.ones(4)]], r"a tensor of shape \(4,\) that is not a parameter of the optimizer"),
    ):
        with pytest.raises(ValueError, match=text):
            arguments.check_groups(optimizer, wrong)  # type: ignore[arg-type]


def test_ranks_of_a_process_set(job_of_one: None) -> None:
    assert arguments.count_ranks(None) == 1
    with pytest.raises(ValueError, match=r"process_set must be a ProcessSet, not \[0\]"):
        arguments.count_ranks([0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is not registered\. Register a set with init\(process_sets="):
        arguments.count_ranks(hvd.ProcessSet([0]))


def test_the_compression_of_adasum(job_of_one: None) -> None:
    assert arguments.choose_compression(hvd.Compression.fp16, ReduceOp.ADASUM) is hvd.Compression.fp16
    with pytest.raises(ValueError, match=r"not supported with op=hvd\.Adasum"):
        arguments.choose_compression(hvd.Compression.int8, ReduceOp.ADASUM)
