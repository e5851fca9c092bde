from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest

from spark_estimator.launch.worker import frozen
from spark_estimator.launch.worker.frozen import FrozenWatch


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(frozen, "time", clock)
    return clock


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child.pid
        child.kill()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def looks(watch: FrozenWatch, clock: Clock, pid: int, times: int) -> list[bool]:
    """What it finds, once a second."""
    found_frozen = []
    for _ in range(times):
        found_frozen.append(watch.is_frozen(pid))
        clock.now += 1
    return found_frozen


def test_a_process_that_stays_stopped_is_frozen(clock: Clock, process: int) -> None:
    stop(process)
    assert looks(FrozenWatch(timedelta(seconds=3)), clock, process, 5) == [False] * 3 + [True] * 2


def test_one_that_continues_is_not(clock: Clock, process: int) -> None:
    watch = FrozenWatch(timedelta(seconds=3))
    stop(process)
    looks(watch, clock, process, 2)
    os.kill(process, signal.SIGCONT)
    os.waitid(os.P_PID, process, os.WCONTINUED | os.WNOWAIT)
    assert looks(watch, clock, process, 1) == [False]
    stop(process)
    assert looks(watch, clock, process, 3) == [False] * 3


def test_time_in_which_it_did_not_look_does_not_count(clock: Clock, process: int) -> None:
    watch = FrozenWatch(timedelta(seconds=3))
    stop(process)
    looks(watch, clock, process, 2)
    clock.now += 100
    assert looks(watch, clock, process, 3) == [False] * 3


def test_without_a_limit_and_without_a_process_nothing_is_frozen(clock: Clock, process: int) -> None:
    stop(process)
    assert looks(FrozenWatch(timedelta(0)), clock, process, 9) == [False] * 9
    assert looks(FrozenWatch(timedelta(seconds=1)), clock, 2**22 + 1, 3) == [False] * 3
