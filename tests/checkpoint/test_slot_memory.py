"""Memory of a copy that a rank and its writer share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from spark_estimator.checkpoint.slot_memory import SlotMemory, create_descriptor


@pytest.fixture
def slot() -> Iterator[SlotMemory]:
    result = SlotMemory(create_descriptor("test", 0))
    yield result
    result.close()


def test_memory_grows_and_keeps_what_is_behind_the_view(slot: SlotMemory) -> None:
    assert slot.make_room(10)
    slot.populate()
    slot.view[:4] = b"abcd"
    slot.put(5000, b"behind")
    assert not slot.make_room(4096)
    assert os.pread(slot.descriptor, 6, 5000) == b"behind"
    assert slot.make_room(9000)
    assert (slot.view[:4], slot.view[5000:5006]) == (b"abcd", b"behind")


def test_a_descriptor_has_its_size_and_is_not_inherited() -> None:
    descriptor = create_descriptor("test", 4096)
    assert os.fstat(descriptor).st_size == 4096 and not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_the_other_process_sees_what_is_written(slot: SlotMemory) -> None:
    slot.make_room(1)
    slot.view[0:3] = b"abc"
    slot.put(4096, memoryview(b"behind"))
    child = os.fork()
    if not child:
        with mmap.mmap(slot.descriptor, 0, access=mmap.ACCESS_READ) as other:
            os._exit(0 if (other[:3], other[4096:]) == (b"abc", b"behind") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("size", [1, 4096, 4097])
def test_room_is_in_whole_pages_and_made_once(slot: SlotMemory, size: int) -> None:
    assert slot.make_room(size)
    view = slot.view
    assert len(view) == -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    assert not slot.make_room(len(view)) and slot.view is view


def test_content_without_a_view(slot: SlotMemory) -> None:
    slot.put(10, b"")
    slot.put(10, b"text")
    assert os.pread(slot.descriptor, 100, 0) == bytes(10) + b"text"
    with pytest.raises(AssertionError, match="make_room"):
        _ = slot.view


def test_room_that_is_made_later_keeps_what_is_behind_it(slot: SlotMemory) -> None:
    """The memory never shrinks."""
    slot.put(3 * mmap.PAGESIZE, b"job")
    assert slot.make_room(mmap.PAGESIZE)
    assert os.pread(slot.descriptor, 3, 3 * mmap.PAGESIZE) == b"job"


def test_an_old_view_stays_readable(slot: SlotMemory) -> None:
    slot.make_room(1)
    old = memoryview(slot.view)
    slot.make_room(2 * mmap.PAGESIZE)
    slot.view[0] = 7
    assert old[0] == 7
    old.release()
