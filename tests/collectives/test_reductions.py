"""Reduction constants, old and new arguments, and the names of requests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from spark_estimator.collectives import context
from spark_estimator.collectives.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_adasum,
    describe_call,
    make_request_name,
    reduce_op,
)


@pytest.fixture
def job() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def test_the_numbers_are_horovods() -> None:
    assert [int(op) for op in (Average, Sum, Adasum, Min, Max, Product)] == [0, 1, 2, 3, 4, 5]


def test_errors_name_the_call_and_the_rank(job: None) -> None:
    assert describe_call("allreduce") == "allreduce on rank 0"
    context.shutdown()
    assert describe_call("allreduce") == "allreduce"


def test_names_of_requests() -> None:
    assert make_request_name("allreduce", "x") == ("allreduce.x", False)
    kind, unnamed = make_request_name("allreduce", None)
    assert unnamed and kind.startswith("allreduce")
    with pytest.raises(TypeError, match="allreduce: name must be a string, not 5"):
        make_request_name("allreduce", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "allowed"), [(1, True), (2, True), (3, False), (6, False), (8, True)])
def test_adasum_needs_a_power_of_two(size: int, allowed: bool) -> None:
    check_adasum(Sum, size, "allreduce")
    if allowed:
        check_adasum(Adasum, size, "allreduce")
    else:
        with pytest.raises(NotImplementedError, match=f"power of two of ranks, but there are {size}"):
            check_adasum(Adasum, size, "allreduce")


def test_op_is_average_by_default() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reduce_op(None, None) is Average
        assert reduce_op(None, Max) is Max
        assert reduce_op(None, 1) is Sum


@pytest.mark.parametrize(("average", "op"), [(True, Average), (False, Sum)])
def test_average_still_works_with_a_warning(average: bool, op: int) -> None:
    with pytest.warns(DeprecationWarning, match="average= is deprecated"):
        assert reduce_op(average, None) is op


@pytest.mark.parametrize(
    ("average", "op", "text"),
    [
        (True, Sum, "either op=hvd.Sum or the deprecated average"),
        ("x", None, "average='x' must be True or False"),
        (Sum, None, "average=.*SUM.* must be True or False"),
        (None, 17, r"op=17 must be hvd\.Average"),
    ],
)
def test_other_arguments_are_refused(average: Any, op: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        reduce_op(average, op)
