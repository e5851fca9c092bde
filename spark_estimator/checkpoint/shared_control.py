"""What a rank and its writer share in memory: the state of two slots, under a lock of the kernel.

A *slot* is room for one copy of the state. The kernel releases the lock of a process that dies, so neither can block
the other. Nothing here waits for a message.
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_estimator.mapping import map_file
from spark_estimator.posix import fcntl

SLOTS = 2
BYTES = 4096
_SLOT = struct.Struct("<QQQQ")
_OUTCOME = struct.Struct("<qqq")
_OUTCOME_OFFSET = 1024


class SlotState(enum.IntEnum):
    """The states of one slot.

    FREE: the rank may fill it. STANDBY: a whole copy, written only if the rank dies or asks for it. GO: a whole copy,
    to be written next. WRITING: the writer reads it. Rank: FREE -> STANDBY or GO, STANDBY -> GO or FREE, GO -> FREE.
    Writer: GO -> WRITING -> FREE; of a rank that has ended also STANDBY -> WRITING.
    """

    FREE = 0
    STANDBY = 1
    GO = 2
    WRITING = 3


@dataclass(frozen=True)
class CopySlot:
    """One slot."""

    state: SlotState
    ticket: int = 0  # the number of the copy; later ones have larger numbers, the same on all ranks
    job: tuple[int, int] = (0, 0)  # where its description is in the slot's memory: first byte, and number of bytes


class SharedControl:
    """The page of both processes; `descriptor`: of a file of `BYTES` in memory; stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._page = map_file(descriptor, BYTES)
        self._threads = threading.RLock()  # the kernel's lock is that of the process

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Keep the other process out of the block."""
        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def get_slot(self, number: int) -> CopySlot:
        """Return the slot as it is."""
        state, ticket, first, size = _SLOT.unpack_from(self._page, number * _SLOT.size)
        return CopySlot(SlotState(state), ticket, (first, size))

    def set_slot(self, number: int, slot: CopySlot) -> None:
        """Set a slot. Under the lock."""
        _SLOT.pack_into(self._page, number * _SLOT.size, slot.state, slot.ticket, *slot.job)

    def find_slots(self, *states: SlotState) -> list[int]:
        """Return the slots in one of these states, the oldest copy first."""
        slots = [(self.get_slot(number), number) for number in range(SLOTS)]
        return [number for slot, number in sorted(slots, key=lambda each: each[0].ticket) if slot.state in states]

    @property
    def is_busy(self) -> bool:
        """Return whether the writer has work."""
        return bool(self.find_slots(SlotState.GO, SlotState.WRITING))

    @property
    def completed(self) -> int:
        """Return the last copy that the writer has completed; -1: none."""
        return self._read_outcome()[0] - 1

    @property
    def failed(self) -> int:
        """Return the last copy that it has failed to write; -1: none."""
        return self._read_outcome()[1] - 1

    @property
    def given_up(self) -> int:
        """Return the copy that another rank has failed to write; -1: none."""
        return self._read_outcome()[2] - 1

    def set_outcome(self, *, completed: int = -1, failed: int = -1, given_up: int = -1) -> None:
        """Note copies. Under the lock."""
        tickets = zip(self._read_outcome(), (completed, failed, given_up), strict=True)
        _OUTCOME.pack_into(self._page, _OUTCOME_OFFSET, *(max(before, ticket + 1) for before, ticket in tickets))

    def _read_outcome(self) -> tuple[int, int, int]:
        completed, failed, given_up = _OUTCOME.unpack_from(self._page, _OUTCOME_OFFSET)
        return completed, failed, given_up

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
