"""The memory and the pipes of a rank and its writer, whose work is done in this process."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import Any

from spark_estimator.checkpoint.shared_control import BYTES, CopySlot, SharedControl, SlotState
from spark_estimator.checkpoint.slot_memory import SlotMemory, create_descriptor
from spark_estimator.checkpoint.writer import WriteCopy, Writer, WriterStart


class Rank:
    """A rank's end of the memory and the pipes, without its link."""

    def __init__(self, act: WriteCopy, limit: Any = None) -> None:
        self._open = ExitStack()
        control = self._descriptor(create_descriptor("control", BYTES))
        self.control = SharedControl(control)
        self.slots = [SlotMemory(self._descriptor(create_descriptor(f"slot {number}", 0))) for number in range(2)]
        wake, self.wake = os.pipe()
        self.reports_end, report = os.pipe()
        for descriptor in (wake, self.reports_end, report):
            self._descriptor(descriptor)
        os.set_blocking(self.reports_end, False)
        slots = tuple(slot.descriptor for slot in self.slots)
        start = WriterStart(act, control, wake, report, slots)
        self.writer = Writer(start, limit)

    def _descriptor(self, descriptor: int) -> int:
        self._open.callback(os.close, descriptor)
        return descriptor

    def submit(self, number: int, ticket: int, job: tuple[int, int], state: SlotState = SlotState.GO) -> None:
        with self.control.hold_lock():
            self.control.set_slot(number, CopySlot(state, ticket, job))

    def run(self) -> list[dict[str, Any]]:
        """Ends the rank, and returns the writer's reports."""
        os.close(self.wake)
        self.writer.run()
        return self.reports()

    def reports(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(self.reports_end, 1 << 16).splitlines()]
        except BlockingIOError:
            return []

    def close(self) -> None:
        self._open.close()
