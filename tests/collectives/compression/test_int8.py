"""The errors of rounding to int8: their sizes, keys, and memory that stays as long as the engine."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

from spark_estimator._native import DType
from spark_estimator.collectives import context
from spark_estimator.collectives.compression.int8 import (
    BLOCK,
    LEAST_ELEMENTS,
    count_wire_bytes,
    find_residues,
    make_key,
)


@pytest.fixture
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


@pytest.mark.parametrize(
    ("elements", "expected"),
    [(0, 0), (1, 5), (BLOCK, BLOCK + 4), (BLOCK + 1, BLOCK + 9), (10 * BLOCK, 10 * BLOCK + 40)],
)
def test_bytes_between_hosts(elements: int, expected: int) -> None:
    assert count_wire_bytes(elements) == expected


@pytest.mark.usefixtures("alone")
def test_only_large_tensors_of_float32_have_an_error() -> None:
    forms = [
        (DType.FLOAT32, (LEAST_ELEMENTS,)),
        (DType.FLOAT32, (LEAST_ELEMENTS - 1,)),
        (DType.FLOAT32, (2, LEAST_ELEMENTS)),
        (DType.FLOAT64, (LEAST_ELEMENTS,)),
        (DType.FLOAT16, (LEAST_ELEMENTS,)),
        (DType.FLOAT32, ()),
        (DType.FLOAT32, (LEAST_ELEMENTS, 0)),
    ]
    addresses = find_residues(None, range(len(forms)), forms)
    assert [bool(address) for address in addresses] == [True, False, True, *[False] * 4]
    assert find_residues(None, [], []) == ()


@pytest.mark.usefixtures("alone")
def test_a_tensor_has_the_same_memory_in_each_step_and_another_its_own() -> None:
    form = (DType.FLOAT32, (LEAST_ELEMENTS,))
    first = find_residues(None, ["a", "b"], [form, form])
    assert len(set(first)) == 2
    assert find_residues(None, ["b", "a"], [form, form]) == first[::-1]
    reshaped = (DType.FLOAT32, (2, LEAST_ELEMENTS // 2))
    assert find_residues(None, ["a"], [reshaped]) == first[:1], "the number of elements counts"
    (other,) = find_residues(None, ["a"], [(DType.FLOAT32, (LEAST_ELEMENTS + 1,))])
    assert other not in first
    with pytest.raises(ValueError, match="zip"):
        find_residues(None, ["a"], [])


@pytest.mark.usefixtures("alone")
def test_another_job_begins_with_no_errors() -> None:
    import ctypes

    form = (DType.FLOAT32, (LEAST_ELEMENTS,))

    def memory() -> numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]:
        (address,) = find_residues(None, ["a"], [form])
        return numpy.ctypeslib.as_array((ctypes.c_float * LEAST_ELEMENTS).from_address(address))

    assert not memory().any()
    memory()[:] = 3
    assert (memory() == 3).all()
    context.shutdown()
    context.init()
    assert not memory().any()


def test_without_a_job_there_is_no_memory() -> None:
    with pytest.raises(Exception, match="init"):
        find_residues(None, ["a"], [(DType.FLOAT32, (LEAST_ELEMENTS,))])


class Variable:
    """Any object that can be referred to weakly."""


def test_each_object_has_a_key_of_this_process() -> None:
    first, second = Variable(), Variable()
    assert make_key(first) == make_key(first) != make_key(second)
    seen = {make_key(first), make_key(second)}
    for _ in range(100):  # an id is soon used again
        variable = Variable()
        assert make_key(variable) not in seen
        seen.add(make_key(variable))
        del variable
        gc.collect(0)


def test_threads_get_one_key_for_one_object() -> None:
    variables = [Variable() for _ in range(50)]
    barrier = threading.Barrier(4)

    def keys(_: int) -> list[str]:
        barrier.wait(30)
        return [make_key(variable) for variable in variables]

    with ThreadPoolExecutor(4) as pool:
        of_threads = list(pool.map(keys, range(4)))
    assert all(keys == of_threads[0] for keys in of_threads) and len(set(of_threads[0])) == 50
