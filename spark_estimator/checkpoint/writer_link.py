"""A rank's end of its writer: starts the process, submits copies, and reads their results."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta

import cloudpickle

from spark_estimator.checkpoint.shared_control import BYTES, SLOTS, CopySlot, SharedControl, SlotState
from spark_estimator.checkpoint.slot_memory import SlotMemory, create_descriptor
from spark_estimator.checkpoint.writer import WriteCopy, WriterStart
from spark_estimator.env import FEED_FD_VARIABLE, PROCESS_VARIABLE, PROGRESS_FD_VARIABLE, RENDEZVOUS_FD_VARIABLE
from spark_estimator.peer_json import parse_object

_PROGRAM = "from spark_estimator.checkpoint.writer import main; main()"
# These are the rank's alone. Without the mark the launcher does not end the writer with the rank.
_NOT_INHERITED = (PROCESS_VARIABLE, RENDEZVOUS_FD_VARIABLE, FEED_FD_VARIABLE, PROGRESS_FD_VARIABLE)


@dataclass(frozen=True)
class Report:
    """The result of one copy."""

    ticket: int  # of the copy
    path: str = ""  # of what was to be written
    error: str = ""  # why it was not; empty: it was
    raised: str = ""  # the class of that error, where one was raised
    again: str = ""  # why it is tried again: its result is not known yet; empty: it is
    note: str = ""  # another line for the log
    seconds: float = 0.0
    bytes: int = 0


class WriterLink:
    """One writer, started again when it has died; `act`: as of `writer.WriterStart`; pickled to the writer."""

    def __init__(self, act: WriteCopy) -> None:
        self._act = act
        self._descriptor = create_descriptor("control", BYTES)
        self.control = SharedControl(self._descriptor)
        self.slots = [SlotMemory(create_descriptor(f"slot {number}", 0)) for number in range(SLOTS)]
        self._text = b""
        self._start()

    @property
    def pid(self) -> int:
        """Return the id of the writer's process."""
        return self._process.pid

    def take_slot(self, *, replaces: SlotState) -> tuple[int, int | None]:
        """Take a slot to fill.

        Args:
            replaces: a copy in this state is dropped for it.

        Returns:
            Its number, and the ticket of the copy that is dropped; None: none is.
        """
        with self.control.hold_lock():
            waiting = self.control.find_slots(replaces)
            number = waiting[0] if waiting else self.control.find_slots(SlotState.FREE)[0]
            replaced = self.control.get_slot(number).ticket if waiting else None
            self.control.set_slot(number, CopySlot(SlotState.FREE))
        return number, replaced

    def submit(self, number: int, ticket: int, job: tuple[int, int], *, now: bool) -> None:
        """Submit a filled slot.

        Args:
            job: where its description is.
            now: it is written as soon as the writer is free; False: it is on standby.
        """
        with self.control.hold_lock():
            self.control.set_slot(number, CopySlot(SlotState.GO if now else SlotState.STANDBY, ticket, job))
        self._call()

    def begin_standby(self) -> bool:
        """Start writing the standby copy. Return whether there is one."""
        with self.control.hold_lock():
            numbers = self.control.find_slots(SlotState.STANDBY)
            for number in numbers:
                slot = self.control.get_slot(number)
                self.control.set_slot(number, CopySlot(SlotState.GO, slot.ticket, slot.job))
        self._call()
        return bool(numbers)

    def give_up(self, ticket: int) -> None:
        """Stop the writing of a copy, which another rank has failed to write."""
        with self.control.hold_lock():
            self.control.set_outcome(given_up=ticket)
        self._call()

    def note_failure(self, ticket: int) -> None:
        """Count a copy as failed that the writer never got."""
        with self.control.hold_lock():
            self.control.set_outcome(failed=ticket)

    def read_reports(self, timeout: timedelta = timedelta(0)) -> list[Report]:
        """Return the reports since the last call; wait this time for the first. Start a new writer if it has died."""
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        ready = bool(poll.poll(1000 * timeout.total_seconds()))
        result, ended = [], False
        while ready:
            try:
                text = os.read(self._reports, 1 << 16)
            except BlockingIOError:
                break
            if not text:
                ended = True
                break
            self._text += text
        *lines, self._text = self._text.split(b"\n")
        result += [Report(**parse_object(line)) for line in lines]
        if ended:
            result += self._restart()
        return result

    def close(self, timeout: timedelta | None) -> None:
        """Send the writer the end of its input, and wait at most this time for its exit; None: not at all."""
        for descriptor in (self._wake, self._reports):
            os.close(descriptor)
        if timeout is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout.total_seconds())
        # A writer that has not ended yet continues alone, and is no zombie later.
        threading.Thread(target=self._process.wait, daemon=True, name="spark_estimator writer").start()
        for slot in self.slots:
            slot.close()
        self.control.close()
        os.close(self._descriptor)

    def _call(self) -> None:
        # The pipe is full of calls, or the writer is dead, which `read_reports` sees.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._wake, b".")

    def _start(self) -> None:
        wake, self._wake = os.pipe()
        self._reports, report = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._reports, False)
        passed = (self._descriptor, wake, report, *(slot.descriptor for slot in self.slots))
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(wake)],
                stdin=subprocess.PIPE,
                pass_fds=passed,
                env=environment,
                start_new_session=True,  # signals for a terminal's or a rank's group are not for it
            )
        finally:
            os.close(wake)
            os.close(report)
        slots = tuple(slot.descriptor for slot in self.slots)
        start = WriterStart(self._act, self._descriptor, wake, report, slots)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(cloudpickle.dumps(start))

    def _restart(self) -> list[Report]:
        """Start another writer. What the dead one had to write has failed."""
        code = self._process.wait()
        for descriptor in (self._wake, self._reports):
            os.close(descriptor)
        self._text = b""
        lost = []
        with self.control.hold_lock():
            for number in self.control.find_slots(SlotState.GO, SlotState.WRITING):
                lost.append(self.control.get_slot(number).ticket)
                self.control.set_slot(number, CopySlot(SlotState.FREE))
            if lost:
                self.control.set_outcome(failed=max(lost))
        self._start()
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"the writer's process ended with {ending}; another one was started"
        return [Report(ticket, error=reason) for ticket in lost] or [Report(-1, note=reason)]
