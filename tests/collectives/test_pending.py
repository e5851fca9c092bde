"""What a rank reports of its collectives to ranks that wait for it."""

from __future__ import annotations

import threading
import time

from spark_estimator._native import Op
from spark_estimator.collectives.call import Call
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.pending import Pending, describe_requests, find_longest_wait
from spark_estimator.collectives.requests import submit


def submitted(engine: Engine, name: str, *, age: float = 0.0, waiters: int = 0) -> None:
    """Submits a barrier that stays pending, as if `age` seconds ago."""
    number = submit(engine, Call(Op.BARRIER, name), [], None)._number
    engine.pending[number] = Pending(Op.BARRIER, name, time.monotonic() - age, waiters)


def test_a_rank_without_collectives(single_engine: Engine) -> None:
    assert describe_requests([single_engine], time.monotonic()) == "It is not waiting in a collective."
    assert find_longest_wait([single_engine], time.monotonic()) == (0.0, "")


def test_submitted_and_awaited_ones_the_oldest_first(two_engines: list[Engine]) -> None:
    engine = two_engines[0]
    submitted(engine, "young", age=2, waiters=1)
    submitted(engine, "old", age=9, waiters=1)
    submitted(engine, "forgotten", age=5)
    now = time.monotonic()
    assert describe_requests([engine], now) == (
        "It is waiting for other ranks in barrier 'old' (9 s), barrier 'young' (2 s). It has submitted, without "
        "waiting for the result: barrier 'forgotten' (5 s)."
    )
    seconds, name = find_longest_wait([engine], now)
    assert (round(seconds), name) == (9, "barrier 'old'")


def test_a_wait_is_seen_while_it_lasts(two_engines: list[Engine]) -> None:
    handle = submit(two_engines[0], Call(Op.BARRIER, "x"), [], None)
    waiting = threading.Thread(target=handle.wait)
    waiting.start()
    deadline = time.monotonic() + 20
    while "waiting for other ranks in barrier 'x'" not in describe_requests(two_engines[:1], time.monotonic()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    submit(two_engines[1], Call(Op.BARRIER, "x"), [], None).wait()
    waiting.join(20)
    assert find_longest_wait(two_engines[:1], time.monotonic()) == (0.0, "")


def test_a_finished_collective_is_left_out_before_its_result_is_fetched(single_engine: Engine) -> None:
    handle = submit(single_engine, Call(Op.BARRIER, "x"), [], None)
    while not handle.done():
        time.sleep(0.001)
    single_engine.pending[handle._number] = Pending(Op.BARRIER, "x", time.monotonic(), 1)
    single_engine.shutdown()
    assert describe_requests([single_engine], time.monotonic()) == "It is not waiting in a collective."


def test_many_are_counted_and_numbered_names_are_explained(two_engines: list[Engine]) -> None:
    for number in range(13):
        submitted(two_engines[0], f"DistributedOptimizer.1.bucket.{number}", age=100 - number)
    text = describe_requests(two_engines[:1], time.monotonic())
    assert "bucket.9'" in text and "bucket.10'" not in text and "and 3 more." in text
    assert "The number in 'DistributedOptimizer.1' counts" in text
