"""The queue of a job's events is bounded, and a thread that adds more waits."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from spark_estimator.launch.job.events import Begun, EventQueue, Failed, FrameReceived, Lines, Message
from spark_estimator.launch.job.failures import RAISED, FailureReport


@pytest.mark.parametrize(
    "event",
    [
        Lines(0, "stdout", ["x" * (1 << 14)] * 64),
        Message(0, "x" * (1 << 20)),
        FrameReceived(0, {"kind": "ready", "why": "x" * (1 << 20)}),
        Failed(FailureReport(0, "host", 1, RAISED, "failed", traceback="x" * (1 << 20))),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_take_a_bounded_part_of_memory(event: Any) -> None:
    """A thread that adds more waits until some are taken."""
    events = EventQueue()
    count = 0
    with pytest.raises(queue.Full):
        while count < 1000:
            events.put(event, timeout=0.01)
            count += 1
    assert 8 <= count <= 65, "of 1 MiB each"
    assert [events.get_nowait() for _ in range(count)] == [event] * count and events.empty()
    with pytest.raises(queue.Full):
        for _ in range(2000):
            events.put(Begun(0, 1), timeout=0.01)
    assert events.full()


def test_a_thread_that_waits_for_room_gets_it() -> None:
    events = EventQueue()
    large = Message(0, "x" * (8 << 20))

    def put_ten() -> None:
        for _ in range(10):
            events.put(large)

    threads = [threading.Thread(target=put_ten, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [events.get(timeout=60) for _ in range(40)] == [large] * 40
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
