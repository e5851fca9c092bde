"""A writer whose rank has ended: it ends if its store hangs, and not while it advances."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import signal, sys, time
from datetime import timedelta
from spark_estimator.checkpoint import orphan_limit
orphan_limit.GRACE = timedelta(seconds=0.3)
limit = orphan_limit.OrphanLimit(int(sys.argv[1]))
print("waits", flush=True)
"""


class Child:
    """A process with a limit, and the pipe of its rank."""

    def __init__(self, text: str) -> None:
        wake, self.rank = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + text, str(wake)], pass_fds=[wake], stdout=subprocess.PIPE, text=True
        )
        os.close(wake)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "waits\n"

    def end_rank(self) -> int:
        """How the process ends after its rank."""
        os.close(self.rank)
        return self.process.wait(60)


@pytest.fixture
def ignored_alarm() -> Iterator[None]:
    """As children inherit it."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "call", ["time.sleep(1000)", "__import__('threading').Event().wait()", "__import__('select').poll().poll()"]
)
def test_a_call_that_hangs_ends_with_the_rank(call: str) -> None:
    assert Child(call).end_rank() == -signal.SIGALRM


def test_what_a_rank_has_ignored_or_blocked_does_not_matter(ignored_alarm: None) -> None:
    assert Child("time.sleep(1000)").end_rank() == -signal.SIGALRM


def test_a_writer_of_a_rank_that_lives_has_no_limit() -> None:
    child = Child("time.sleep(1); limit.postpone(); time.sleep(1); print('lives', flush=True); time.sleep(1000)")
    assert child.process.stdout is not None and child.process.stdout.readline() == "lives\n"
    assert child.end_rank() == -signal.SIGALRM


def test_a_writer_that_advances_goes_on() -> None:
    text = "orphan_limit.GRACE = timedelta(seconds=3)\nfor _ in range(5): limit.postpone(); time.sleep(1)"
    assert Child(text).end_rank() == 0


def test_a_large_copy_has_more_time() -> None:
    assert Child("limit.postpone(100_000_000); time.sleep(2)").end_rank() == 0
