"""The writer: a process beside a rank that writes the rank's copies, and outlives the rank until they are written.

It is started by `writer_link`, has its descriptors, and imports neither torch nor numpy. The rank sends what writes a
copy (`WriteCopy`), pickled, through a pipe. Extensions define such functions, too: `Writer`, `PendingCopy` and
`GivenUpError` are changed together with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_estimator.checkpoint.orphan_limit import OrphanLimit
from spark_estimator.checkpoint.shared_control import CopySlot, SharedControl, SlotState
from spark_estimator.collectives import preemption
from spark_estimator.env import Settings
from spark_estimator.errors import remove_links
from spark_estimator.mapping import map_file
from spark_estimator.store.digests import make_seal

# Pauses between attempts if a store is unavailable: half a minute in all.
_PAUSES = (0.5, 1, 2, 4, 8, 16)
_LONGEST_POLL = 1.0


class GivenUpError(Exception):
    """The copy is no longer needed: another rank has failed, or another attempt writes."""


@dataclass(frozen=True)
class PendingCopy:
    """One copy that is to be written."""

    ticket: int  # of the copy
    job: dict[str, Any]  # what the rank has written on it: at least `path`, and `end`, the number of its bytes
    view: memoryview  # of the slot's memory


#: Writes a copy and returns the number of bytes; it is sent to the writer by pickle.
WriteCopy = Callable[["Writer", PendingCopy], int]


@dataclass(frozen=True)
class WriteFile:
    """Replaces one file, sealed with its digest."""

    write: Callable[[str, bytes], None]  # (path, content); puts a file in place

    def __call__(self, writer: Writer, copy: PendingCopy) -> int:
        content = bytes(copy.view[: copy.job["end"]])
        self.write(copy.job["path"], content + make_seal(content))
        return len(content)


@dataclass(frozen=True)
class WriterStart:
    """The input of a writer at its start."""

    act: WriteCopy  # writes one copy
    control: int  # descriptor of the shared page
    wake: int  # descriptor of the pipe that ends with the rank
    report: int  # descriptor of the pipe of the reports
    slots: tuple[int, ...]  # [slots] descriptors of their memory


class Writer:
    """The process's work.

    Args:
        limit: ends this process if it hangs after the rank's end; None: nothing does.

    Attributes:
        is_orphan: the rank has ended.
    """

    def __init__(self, start: WriterStart, limit: OrphanLimit | None = None) -> None:
        self._start = start
        self._limit = limit
        self._control = SharedControl(start.control)
        self._wake = start.wake
        self._report = start.report
        self._slots = start.slots
        self.is_orphan = False
        os.set_blocking(self._wake, False)
        os.set_blocking(self._report, False)

    def run(self) -> None:
        """Write until the rank has ended and all is written."""
        while True:
            number = self._take_next()
            if number is not None:
                self._write(number)
            elif self.is_orphan:
                return
            else:
                self.pause(None)

    def _take_next(self) -> int | None:
        """Return the slot to write now, which is then being written; None: there is none."""
        with self._control.hold_lock():
            states = (SlotState.GO, SlotState.STANDBY) if self.is_orphan else (SlotState.GO,)
            numbers = self._control.find_slots(*states)
            if not numbers:
                return None
            slot = self._control.get_slot(numbers[0])
            self._control.set_slot(numbers[0], CopySlot(SlotState.WRITING, slot.ticket, slot.job))
            return numbers[0]

    def _write(self, number: int) -> None:
        slot = self._control.get_slot(number)
        began = time.monotonic()
        error, raised, path, size = "", "", "", 0
        try:
            # Not closed here: the frames of an error have views of it, and closing would hide that error.
            view = memoryview(map_file(self._slots[number], writable=False))
            job = json.loads(bytes(view[slot.job[0] : slot.job[0] + slot.job[1]]))
            path, size = job["path"], job["end"]
            if self._limit is not None:
                self._limit.postpone(size)
            size = self._start.act(self, PendingCopy(slot.ticket, job, view))
        except GivenUpError as given_up:
            error = str(given_up)
        except Exception as failure:  # its class depends on the store
            raised = type(failure).__name__
            error = f"{raised}: {remove_links(str(failure))}"
        seconds = time.monotonic() - began
        # First: a rank that waits until the writer has no more work then finds the report.
        self.send_report(ticket=slot.ticket, error=error, raised=raised, path=path, seconds=seconds, bytes=size)
        with self._control.hold_lock():
            done = {"failed": slot.ticket} if error else {"completed": slot.ticket}
            self._control.set_outcome(**done)
            self._control.set_slot(number, CopySlot(SlotState.FREE))

    def retry(self, act: Callable[[], int], ticket: int) -> int:
        """Return the result of `act`, which is called again if the store fails."""
        for pause in _PAUSES:
            try:
                return act()
            except (GivenUpError, ValueError):
                raise
            except Exception as error:
                if self.is_orphan or len(self._control.find_slots(SlotState.GO)):
                    raise
                self.send_report(ticket=ticket, again=f"{type(error).__name__}: {error}")
                until = time.monotonic() + pause
                while (left := until - time.monotonic()) > 0:
                    self.check(ticket)
                    self.pause(min(left, _LONGEST_POLL))
        return act()

    def check(self, ticket: int) -> None:
        """Raise if another rank has failed to write this copy. To be called as often as the copy advances."""
        self.advance()
        if self._control.given_up >= ticket:
            raise GivenUpError("another rank has failed to write its part")

    def advance(self) -> None:
        """Note that the store has answered: the next call may take as long again."""
        if self._limit is not None:
            self._limit.postpone()

    def pause(self, seconds: float | None) -> None:
        """Wait until the rank calls or has ended, or the time is over."""
        if self.is_orphan:
            time.sleep(seconds or 0)
            return
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(None if seconds is None else 1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                self.is_orphan = not os.read(self._wake, 4096)

    def send_report(self, **values: Any) -> None:
        """Send the rank a report, of the fields of `writer_link.Report`."""
        # A rank that does not read its reports is not waited for.
        with contextlib.suppress(OSError):
            os.write(self._report, json.dumps(values).encode() + b"\n")


def main() -> None:
    """Run a writer with what it reads from its standard input; its argument is the descriptor `WriterStart.wake`."""
    limit = OrphanLimit(int(sys.argv[1]))  # first: what is read may be a store that connects
    with contextlib.suppress(ValueError):
        preemption.watch().ignore(Settings.read())
    start: WriterStart = pickle.load(sys.stdin.buffer)  # noqa: S301  from the rank that has started this process
    with contextlib.suppress(OSError):
        os.nice(5)
    Writer(start, limit).run()


if __name__ == "__main__":
    main()
