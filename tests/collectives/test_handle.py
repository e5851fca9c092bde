"""A submitted collective: done, waited for, gathered, and used in the wrong way."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator._native import DType, Op
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.requests import submit, submit_bytes
from spark_estimator.errors import MismatchError

FIRST, SECOND = b"abc", b"de"


def of_two(engines: list[Engine], op: Op, name: str = "x") -> list[Handle]:
    return [submit(engine, Call(op, name), [], None) for engine in engines]


def test_it_is_done_when_all_ranks_have_submitted_it(two_engines: list[Engine]) -> None:
    handle = submit(two_engines[0], Call(Op.BARRIER, "x"), [], None)
    assert not handle.done()
    assert repr(handle) == "<Handle barrier 'x': in progress>"
    assert list(two_engines[0].pending) == [handle._number]
    submit(two_engines[1], Call(Op.BARRIER, "x"), [], None).wait()
    handle.wait(timedelta(seconds=60))
    handle.wait()
    assert handle.done() and repr(handle) == "<Handle barrier 'x': ok>"
    assert not two_engines[0].pending


def test_a_timeout_names_the_collective_and_does_not_end_it(two_engines: list[Engine]) -> None:
    handle = submit(two_engines[0], Call(Op.BARRIER, "x"), [], None)
    with pytest.raises(TimeoutError, match=r"barrier .x. did not complete on rank 0 within 0\.01 seconds"):
        handle.wait(timedelta(seconds=0.01))
    submit(two_engines[1], Call(Op.BARRIER, "x"), [], None).wait()
    handle.wait()


@pytest.mark.parametrize("timeout", [1, 0.5, "1s"])
def test_a_timeout_is_a_timedelta(single_engine: Engine, timeout: Any) -> None:
    handle = submit(single_engine, Call(Op.BARRIER, "x"), [], None)
    with pytest.raises(TypeError, match=r"timeout must be a datetime\.timedelta"):
        handle.wait(timeout)
    handle.wait()


def test_gathered_rows_outlive_the_engine(two_engines: list[Engine]) -> None:
    handles = [submit_bytes(engine, "x", part) for engine, part in zip(two_engines, (FIRST, SECOND), strict=True)]
    gathered = handles[0].gathered()
    assert (bytes(gathered.data), gathered.rows) == (FIRST + SECOND, (3, 2))
    assert handles[0].gathered() is gathered
    assert bytes(handles[1].gathered().data) == FIRST + SECOND
    two_engines[0].shutdown()
    gathered.data[0] = ord("z")
    assert bytes(gathered.data) == b"zbcde"


def test_nothing_gathered_is_an_empty_result(single_engine: Engine) -> None:
    assert bytes(submit_bytes(single_engine, "x", b"").gathered().data) == b""


def test_the_same_error_each_time(two_engines: list[Engine]) -> None:
    array = (ctypes.c_float * 2)()
    address = ctypes.addressof(array)
    tensor = Tensor(address, address, DType.FLOAT32, (2,))
    handles = [submit(two_engines[0], Call(Op.ALLREDUCE, "x"), [tensor], array)]
    handles.append(submit(two_engines[1], Call(Op.BARRIER, "x"), [], None))
    for handle in (*handles, *handles):
        with pytest.raises(MismatchError, match="x"):
            handle.wait()
    assert repr(handles[0]) == "<Handle allreduce 'x': mismatch>"


def test_the_rank_that_joined_last(two_engines: list[Engine]) -> None:
    handles = of_two(two_engines, Op.JOIN)
    assert handles[0].last_joined() == handles[1].last_joined()
    assert handles[0].last_joined() in (0, 1)


def test_results_of_other_kinds_are_refused(single_engine: Engine) -> None:
    handle = submit(single_engine, Call(Op.BARRIER, "x"), [], None)
    with pytest.raises(TypeError, match="barrier 'x' has its result in its output"):
        handle.gathered()
    with pytest.raises(TypeError, match="is not a join"):
        handle.last_joined()
    with pytest.raises(TypeError, match=r"in host memory: use wait\(\)"):
        handle.await_on(0)
    gathering = submit_bytes(single_engine, "y", b"abc")
    with pytest.raises(TypeError, match=r"in host memory: use gathered\(\)"):
        gathering.rows()
    with pytest.raises(TypeError, match=r"in host memory: use gathered\(\)"):
        gathering.collect([0], 0)
