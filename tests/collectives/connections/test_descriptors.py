"""File descriptors and threads that a group needs, and what is reported when there are too few."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from spark_estimator.collectives.connections import descriptors


@pytest.fixture
def short_of_descriptors() -> Iterator[int]:
    """The limit of this process, a little above what is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 6
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_peer_needs_two_connections_and_a_segment() -> None:
    assert descriptors.count_for_ranks(1) > 0
    assert descriptors.count_for_ranks(5) - descriptors.count_for_ranks(4) == 3


@pytest.mark.parametrize(
    ("error", "used_up"),
    [
        (OSError(errno.EMFILE, ""), True),
        (OSError(errno.ENFILE, ""), True),
        (OSError(errno.ENOENT, ""), False),
        (ValueError(errno.EMFILE), False),
    ],
)
def test_which_errors_mean_that_descriptors_are_used_up(error: Exception, used_up: bool) -> None:
    assert descriptors.are_used_up(error) is used_up


def test_enough_descriptors_and_none_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert descriptors.find_shortage(10) == ""
    assert set(os.listdir("/proc/self/fd")) <= before


def test_too_few_descriptors_are_reported_with_the_remedy(short_of_descriptors: int) -> None:
    text = descriptors.find_shortage(1000)
    assert f"its limit of {short_of_descriptors} (ulimit -n), and 1000 are needed" in text
    assert "Raise the limit" in text
    assert descriptors.find_shortage(1) == ""


def test_enough_threads_and_none_is_left() -> None:
    before = threading.active_count()
    assert descriptors.find_thread_shortage() == ""
    assert threading.active_count() == before


def test_too_few_threads_are_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    text = descriptors.find_thread_shortage()
    assert text.startswith("this process can start 2 more threads, and 4 are needed (can't start new thread).")
    assert "(ulimit -u)" in text and "SPARK_ESTIMATOR_WORKER_THREADS" in text
    assert not any(thread.is_alive() for thread in started)
