"""Requests: their results, and plans of requests that repeat."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from spark_estimator._native import DType, Op
from spark_estimator.collectives import requests
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.requests import Plan, gather_bytes, run, submit
from spark_estimator.errors import DuplicateNameError, ShutDownError
from tests.support.held_engines import held_engines

SUM = Call(Op.ALLREDUCE, "sum")


class Floats:
    """Memory of some float32 numbers, reduced in place."""

    def __init__(self, *values: float) -> None:
        self.array = (ctypes.c_float * len(values))(*values)
        self.address = ctypes.addressof(self.array)
        self.tensors = [Tensor(self.address, self.address, DType.FLOAT32, (len(values),))]

    @property
    def values(self) -> list[float]:
        return list(self.array)


def test_a_sum_over_two_ranks(two_engines: list[Engine]) -> None:
    memories = [Floats(1, 2), Floats(10, 20)]
    handles = [
        submit(engine, SUM, memory.tensors, memory) for engine, memory in zip(two_engines, memories, strict=True)
    ]
    for handle in handles:
        handle.wait()
    assert [memory.values for memory in memories] == [[11, 22], [11, 22]]


def test_from_the_third_use_on_a_request_is_a_plan(single_engine: Engine) -> None:
    kinds = []
    for turn in range(4):
        memory = Floats(turn, 2)
        assert run(single_engine, SUM, memory.tensors, memory) is None
        assert memory.values == [turn, 2]
        kinds.append(type(single_engine.plans["sum"]) is Plan)
    assert kinds == [False, True, True, True]
    plan = single_engine.plans["sum"]
    other = Floats(1, 2, 3)  # the same name with another shape, as of a last batch
    run(single_engine, SUM, other.tensors, other)
    assert other.values == [1, 2, 3]
    assert single_engine.plans["sum"] is plan


def test_submitted_requests_become_plans(two_engines: list[Engine]) -> None:
    kinds = []
    for turn in range(4):
        memories = [Floats(turn, 2), Floats(10, turn)]
        for handle in [
            submit(engine, SUM, mine.tensors, mine) for engine, mine in zip(two_engines, memories, strict=True)
        ]:
            handle.wait()
        assert [mine.values for mine in memories] == [[turn + 10, turn + 2]] * 2
        kinds.append([type(engine.plans["sum"]) is Plan for engine in two_engines])
    assert kinds == [[False] * 2, [True] * 2, [True] * 2, [True] * 2]


def test_a_submitted_plan_in_flight_is_a_duplicate_name(two_engines: list[Engine]) -> None:
    """The message and the state are those of a request that is no plan."""
    first, second = two_engines
    for _ in range(2):
        memories = [Floats(1), Floats(2)]
        for handle in [
            submit(engine, SUM, mine.tensors, mine) for engine, mine in zip(two_engines, memories, strict=True)
        ]:
            handle.wait()
    memory, other = Floats(1), Floats(2)
    handle = submit(first, SUM, memory.tensors, memory)
    with pytest.raises(DuplicateNameError, match="sum") as caught:
        submit(first, SUM, memory.tensors, memory)
    assert "plan" not in str(caught.value)
    submit(second, SUM, other.tensors, other).wait()
    handle.wait()
    assert memory.values == other.values == [3]


def test_results_of_a_submitted_plan_stay_while_it_is_submitted_again(two_engines: list[Engine]) -> None:
    gather = Call(Op.ALLGATHER, "rows")
    handles = []
    for turn in range(5):
        memories = [Floats(turn), Floats(turn, turn)]
        mine = [
            submit(engine, gather, [tensor._replace(output=0) for tensor in memory.tensors], memory)
            for engine, memory in zip(two_engines, memories, strict=True)
        ]
        mine[1].wait()
        while not mine[0].done():
            pass
        handles.append(mine[0])
    assert [handle.gathered().data.cast("f").tolist() for handle in handles] == [[turn] * 3 for turn in range(5)]


def test_requests_that_do_not_repeat_are_not_remembered(single_engine: Engine) -> None:
    memory = Floats(1)
    run(single_engine, SUM, memory.tensors, memory, repeats=False)
    submit(single_engine, SUM, memory.tensors, memory, repeats=False).wait()
    assert not single_engine.plans


def test_the_oldest_plans_are_forgotten(single_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_REMEMBERED", 2)
    for name in ("a", "b", "a", "c"):
        memory = Floats(1)
        run(single_engine, Call(Op.ALLREDUCE, name), memory.tensors, memory)
    assert list(single_engine.plans) == ["a", "c"]


def test_a_plan_is_used_with_other_memory_each_time(single_engine: Engine) -> None:
    plan = Plan(single_engine, Call(Op.ALLREDUCE, "x", postscale=3.0), [(DType.FLOAT32, (2,))])
    for start in (1.0, 5.0):
        memory = Floats(start, 0)
        plan.submit([memory.address], [memory.address], memory).wait()
        assert memory.values == [3 * start, 0]
    single_engine.shutdown()
    with pytest.raises(ShutDownError):
        plan.run([memory.address], [memory.address], memory)


def test_one_request_of_a_name_at_a_time(two_engines: list[Engine]) -> None:
    memory = Floats(1)
    handle = submit(two_engines[0], SUM, memory.tensors, memory)
    with pytest.raises(DuplicateNameError, match="sum"):
        submit(two_engines[0], SUM, memory.tensors, memory)
    other = Floats(2)
    submit(two_engines[1], SUM, other.tensors, other).wait()
    handle.wait()
    assert memory.values == [3]


def test_bytes_of_all_ranks(two_engines: list[Engine]) -> None:
    payloads = [b"", b"\x00abc"]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(gather_bytes, two_engines, ["x", "x"], payloads))
    assert [[bytes(part) for part in result] for result in results] == [payloads, payloads]


@pytest.mark.parametrize("ends_by", ["timeout", "interrupt"])
def test_a_wait_ends_while_its_collective_runs(ends_by: str) -> None:
    """All ranks have agreed on it and send heartbeats, but its bytes do not arrive."""
    count = 1 << 20  # more than the sockets take at once
    with held_engines() as (engines, link), ThreadPoolExecutor(1) as pool:
        memories = [Floats(*[rank + 1.0] * count) for rank in range(2)]

        def reduce(rank: int, timeout: timedelta | None = None) -> None:
            run(engines[rank], SUM, memories[rank].tensors, memories[rank], timeout=timeout)

        for _ in range(3):
            other = pool.submit(reduce, 1)
            reduce(0)
            other.result()
        link.hold()
        other = pool.submit(reduce, 1)
        if ends_by == "timeout":
            with pytest.raises(TimeoutError, match=r"on this rank allreduce 'sum' .* is running and waits for rank 1"):
                reduce(0, timedelta(seconds=1))
        else:
            interrupt_when_it_runs(engines[0])
            with pytest.raises(KeyboardInterrupt):
                reduce(0)
        assert not other.done()
        link.let_go()
        other.result()
        assert set(memories[1].values) == {24.0}


def interrupt_when_it_runs(engine: Engine) -> None:
    """Sends Ctrl-C to this process as soon as a collective of the engine waits for another rank."""

    def watch() -> None:
        while not engine.describe("running"):
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
