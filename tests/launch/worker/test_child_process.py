"""What the operating system reports of child processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from spark_estimator.launch.worker import child_process
from spark_estimator.launch.worker.child_process import (
    UNKNOWN,
    FrozenWatch,
    MemoryBaseline,
    describe_end,
    describe_kill,
)


def test_an_end_is_seen_before_the_child_is_reaped() -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    descriptor = child_process.open_exit_descriptor(child.pid)
    assert not child_process.has_ended(child.pid)
    child_process.signal_group(child, signal.SIGKILL)
    if descriptor >= 0:
        assert select.select([descriptor], [], [], 10)[0]
        os.close(descriptor)
    while not child_process.has_ended(child.pid):
        pass
    assert child_process.reap(child)[0] == -signal.SIGKILL == child.returncode
    child_process.signal_group(child, signal.SIGKILL)  # its number may be another's now: nothing is sent


def test_the_peak_of_a_child_s_memory() -> None:
    before = MemoryBaseline.take()
    size = before.peak_bytes + (64 << 20)
    child = subprocess.Popen([sys.executable, "-S", "-c", f"b'x' * {size}; raise SystemExit(7)"])
    status, peak = child_process.reap(child)
    assert status == 7 and peak >= size


def test_a_child_that_was_reaped_elsewhere_has_an_unknown_status() -> None:
    child = subprocess.Popen(["true"])
    os.waitpid(child.pid, 0)
    assert child_process.has_ended(child.pid)
    assert child_process.reap(child) == (UNKNOWN, 0)
    assert describe_end(UNKNOWN).startswith("an unknown status, because this program ignores SIGCHLD")


def test_a_process_that_does_not_exist_has_no_exit_descriptor() -> None:
    assert child_process.open_exit_descriptor((1 << 22) + 1) == -1, "more than the largest number of a process"


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit status 0"), (3, "exit status 3"), (-9, "signal 9 (SIGKILL)"), (-63, "signal 63")],
)
def test_an_exit_status_in_words(status: int, text: str) -> None:
    assert describe_end(status) == text


def test_only_a_kill_is_explained_by_memory() -> None:
    before = MemoryBaseline(100 << 20, child_process.count_oom_kills())
    assert describe_kill(-11, 500 << 20, before) == "was killed by signal 11 (SIGSEGV)"
    text = describe_kill(-9, 500 << 20, before)
    assert "after its memory peaked at 500 MiB" in text and "its host was out of memory" in text
    assert "peaked" not in describe_kill(-9, 50 << 20, before), "that is the launcher's own peak"
    assert "out-of-memory killer was active" in describe_kill(-9, 0, before._replace(oom_kills=-1))


def test_closed_standard_descriptors_are_opened_again() -> None:
    code = (
        "import os; os.closerange(0, 2)\n"
        "from spark_estimator.launch.worker.child_process import keep_standard_descriptors as keep\n"
        "keep(); raise SystemExit(7 * (os.pipe()[0] > 2 and os.get_inheritable(0) and os.get_inheritable(1)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(child_process, "time", clock)
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
