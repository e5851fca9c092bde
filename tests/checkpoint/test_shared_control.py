"""The page that a rank and its writer share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from spark_estimator.checkpoint.shared_control import BYTES, CopySlot, SharedControl, SlotState
from spark_estimator.checkpoint.slot_memory import create_descriptor


@pytest.fixture
def descriptor() -> Iterator[int]:
    result = create_descriptor("test", BYTES)
    yield result
    os.close(result)


def test_both_ends_see_the_same(descriptor: int) -> None:
    rank, writer = SharedControl(descriptor), SharedControl(descriptor)
    assert (rank.completed, rank.failed, rank.given_up, rank.is_busy) == (-1, -1, -1, False)
    with rank.hold_lock():
        rank.set_slot(0, CopySlot(SlotState.GO, 7, (64, 12)))
        rank.set_slot(1, CopySlot(SlotState.STANDBY, 8))
    assert writer.get_slot(0) == CopySlot(SlotState.GO, 7, (64, 12))
    assert writer.find_slots(SlotState.STANDBY, SlotState.GO) == [0, 1]
    assert writer.is_busy
    with writer.hold_lock():
        writer.set_outcome(completed=0, failed=5)
        writer.set_outcome(given_up=3)
    assert (rank.completed, rank.failed, rank.given_up) == (0, 5, 3)


def test_another_process_waits_for_the_lock(descriptor: int) -> None:
    control = SharedControl(descriptor)
    began, ended = os.pipe(), os.pipe()
    with control.hold_lock():
        child = os.fork()
        if not child:
            os.write(began[1], b".")
            with SharedControl(descriptor).hold_lock():
                os.write(ended[1], b".")
            os._exit(0)
        os.read(began[0], 1)
        os.set_blocking(ended[0], False)
        with pytest.raises(BlockingIOError):
            os.read(ended[0], 1)
    os.waitpid(child, 0)
    assert os.read(ended[0], 1) == b"."


def test_another_thread_waits_for_the_lock(descriptor: int) -> None:
    control, inside = SharedControl(descriptor), threading.Event()

    def enter() -> None:
        with control.hold_lock():
            inside.set()

    with control.hold_lock():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not inside.wait(0.05)
    thread.join()
    assert inside.is_set()
