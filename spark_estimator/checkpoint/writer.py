"""The writer: a process beside a rank that writes the rank's copies, and outlives the rank until they are written.

It is started by `writer_link`, has its descriptors, and imports neither torch nor numpy. The rank sends its store,
pickled, through a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import posixpath
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spark_estimator.checkpoint import folders, part_file
from spark_estimator.checkpoint.metadata_text import Note, SavedObject, SavedPiece, metadata_text
from spark_estimator.checkpoint.orphan_limit import GRACE, OrphanLimit
from spark_estimator.checkpoint.shared_control import CopySlot, SharedControl, SlotState
from spark_estimator.errors import without_links
from spark_estimator.mapping import map_file
from spark_estimator.store import FilesystemStore, Store
from spark_estimator.store.digests import seal_of
from spark_estimator.store.replacement import make_folders

# Pauses between attempts if a store is unavailable: half a minute in all.
_PAUSES = (0.5, 1, 2, 4, 8, 16)
_SHORTEST_POLL, _LONGEST_POLL = 0.02, 1.0


class GivenUpError(Exception):
    """The checkpoint is no longer needed: another rank has failed, or another attempt writes."""


@dataclass(frozen=True)
class WriterStart:
    """The input of a writer at its start.

    Attributes:
        store: into which it writes.
        write: ``write(path, content)`` puts a file in place; None: there are only parts.
        control, wake, report: descriptors: the shared page, the pipe that ends with the rank, and that of the reports.
        slots: [slots] descriptors of their memory.
    """

    store: Store
    write: Callable[[str, bytes], None] | None
    control: int
    wake: int
    report: int
    slots: tuple[int, ...]


class Writer:
    """The process's work.

    Args:
        limit: ends this process if it hangs after the rank's end; None: nothing does.
    """

    def __init__(self, start: WriterStart, limit: OrphanLimit | None = None) -> None:
        self._start = start
        self._limit = limit
        self._control = SharedControl(start.control)
        self._wake = start.wake
        self._report = start.report
        self._slots = start.slots
        self._is_orphan = False
        self._complete: set[folders.Folder] = set()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._report, False)

    @property
    def _store(self) -> FilesystemStore:
        """Of parts."""
        assert isinstance(self._start.store, FilesystemStore)
        return self._start.store

    def run(self) -> None:
        """Writes until the rank has ended and all is written."""
        while True:
            number = self._next()
            if number is not None:
                self._write(number)
            elif self._is_orphan:
                return
            else:
                self._pause(None)

    def _next(self) -> int | None:
        """The slot to write now, which is then being written; None: there is none."""
        with self._control.locked():
            states = (SlotState.GO, SlotState.STANDBY) if self._is_orphan else (SlotState.GO,)
            numbers = self._control.in_state(*states)
            if not numbers:
                return None
            slot = self._control.slot(numbers[0])
            self._control.set_slot(numbers[0], CopySlot(SlotState.WRITING, slot.ticket, slot.job))
            return numbers[0]

    def _write(self, number: int) -> None:
        slot = self._control.slot(number)
        began = time.monotonic()
        error, raised, path, size = "", "", "", 0
        try:
            # Not closed here: the frames of an error have views of it, and closing would hide that error.
            view = memoryview(map_file(self._slots[number], writable=False))
            job = json.loads(bytes(view[slot.job[0] : slot.job[0] + slot.job[1]]))
            table = json.loads(bytes(view[job["table"][0] : sum(job["table"])]))
            path, size = job["path"], job["end"]
            if self._limit is not None:
                self._limit.postpone(size)
            act = _ACTIONS[job["kind"]]
            size = act(self, slot.ticket, job, table, view)
        except GivenUpError as given_up:
            error = str(given_up)
        except Exception as failure:  # its class depends on the store
            raised = type(failure).__name__
            error = f"{raised}: {without_links(str(failure))}"
        seconds = time.monotonic() - began
        with self._control.locked():
            done = {"failed": slot.ticket} if error else {"completed": slot.ticket}
            self._control.set_outcome(**done)
            self._control.set_slot(number, CopySlot(SlotState.FREE))
        self._send_report(ticket=slot.ticket, error=error, raised=raised, path=path, seconds=seconds, bytes=size)

    def _tried(self, act: Callable[[], int], ticket: int) -> int:
        """The result of `act`, which is called again if the store fails."""
        for pause in _PAUSES:
            try:
                return act()
            except (GivenUpError, ValueError):
                raise
            except Exception as error:
                if self._is_orphan or len(self._control.in_state(SlotState.GO)):
                    raise
                self._send_report(ticket=ticket, again=f"{type(error).__name__}: {error}")
                until = time.monotonic() + pause
                while (left := until - time.monotonic()) > 0:
                    self._check(ticket)
                    self._pause(min(left, _LONGEST_POLL))
        return act()

    def _part(self, ticket: int, job: dict[str, Any], table: dict[str, Any], view: memoryview) -> int:
        return self._tried(lambda: self._part_once(ticket, job, table, view), ticket)

    def _part_once(self, ticket: int, job: dict[str, Any], table: dict[str, Any], view: memoryview) -> int:
        """Writes this rank's part; on rank 0 what makes it a checkpoint, too. Returns the part's bytes."""
        path, rank, end = job["path"], job["rank"], job["end"]
        if "://" in path:
            self._store.fs.makedirs(path, exist_ok=True)
        else:
            make_folders(path)
        file = folders.part_name(rank)
        began = time.monotonic()
        objects, offset = [], end
        for key, where, first, length in job["objects"]:
            objects.append((SavedObject(key, where, offset, length), view[first : first + length]))
            offset += length

        def content() -> Any:
            yield from part_file.chunks(view, end, table["holes"])
            for _, text in objects:
                yield text

        with self._store.open(posixpath.join(path, file), "wb") as stream:
            size = part_file.write(stream, content(), lambda: self._check(ticket))
        pieces = [SavedPiece(**piece) for piece in table["pieces"]]
        note = Note(rank, file, size, table["structure"], pieces, [saved for saved, _ in objects])
        self._store.write(posixpath.join(path, folders.note_name(rank)), json.dumps(note.to_json()).encode())
        if rank == 0:
            self._complete_with_all(ticket, job, timedelta(seconds=2 * (time.monotonic() - began)))
        return size

    def _complete_with_all(self, ticket: int, job: dict[str, Any], grace: timedelta) -> None:
        path = job["path"]
        names = [folders.note_name(rank) for rank in range(job["size"])]
        self._await(ticket, path, set(names), max(grace, GRACE))
        notes = []
        for name in names:
            self._check(ticket)
            notes.append(Note.from_json(json.loads(self._store.read(posixpath.join(path, name)))))
        self._check(ticket)
        self._store.write(posixpath.join(path, folders.METADATA), metadata_text(notes, path))
        # Nothing hangs on what follows: what cannot be removed stays.
        try:
            for name in names:
                self._advance()
                self._store.remove(posixpath.join(path, name))
            self._clean(job)
        except Exception as error:
            self._send_report(ticket=ticket, note=f"older checkpoints in {posixpath.dirname(path)} stay: {error}")

    def _await(self, ticket: int, path: str, names: set[str], grace: timedelta) -> None:
        """Returns when the folder has these files."""
        pause, until = _SHORTEST_POLL, float("inf")
        while True:
            missing = names - {posixpath.basename(entry.path) for entry in self._store.entries(path)}
            if not missing:
                return
            self._check(ticket)
            if self._is_orphan:
                until = min(until, time.monotonic() + grace.total_seconds())
            if time.monotonic() > until:
                raise GivenUpError(f"the ranks of {', '.join(sorted(missing))} have not written their parts")
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_POLL)

    def _clean(self, job: dict[str, Any]) -> None:
        root = posixpath.dirname(job["path"])
        present = folders.folders_in(self._store, root)
        self._complete &= set(present)
        for folder in present:
            self._advance()
            if folder not in self._complete and folders.is_complete(self._store, root, folder):
                self._complete.add(folder)
        every = None if job["keep_every"] is None else timedelta(seconds=job["keep_every"])
        for folder in folders.expendable(present, self._complete, job["keep"], every):
            self._advance()
            path = posixpath.join(root, folder.name)
            if folder in self._complete:  # first what makes it a checkpoint
                self._store.remove(posixpath.join(path, folders.METADATA))
            self._store.remove(path)

    def _file(self, ticket: int, job: dict[str, Any], table: dict[str, Any], view: memoryview) -> int:
        """Replaces one file, sealed with its digest."""
        content = b"".join(part_file.chunks(view, job["end"], table["holes"]))
        assert self._start.write is not None
        self._start.write(job["path"], content + seal_of(content))
        return len(content)

    def _check(self, ticket: int) -> None:
        """Raises if another rank has failed to write this copy. To be called as often as the copy advances."""
        self._advance()
        if self._control.given_up >= ticket:
            raise GivenUpError("another rank has failed to write its part")

    def _advance(self) -> None:
        """The store has answered: the next call may take as long again."""
        if self._limit is not None:
            self._limit.postpone()

    def _pause(self, seconds: float | None) -> None:
        """Returns when the rank calls or has ended, or the time is over."""
        if self._is_orphan:
            time.sleep(seconds or 0)
            return
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(None if seconds is None else 1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                self._is_orphan = not os.read(self._wake, 4096)

    def _send_report(self, **values: Any) -> None:
        # A rank that does not read its reports is not waited for.
        with contextlib.suppress(OSError):
            os.write(self._report, json.dumps(values).encode() + b"\n")


_ACTIONS: dict[str, Callable[[Writer, int, dict[str, Any], dict[str, Any], memoryview], int]] = {
    "part": Writer._part,
    "file": Writer._file,
}


def main() -> None:
    """Runs a writer with what it reads from its standard input; its argument is the descriptor `WriterStart.wake`."""
    limit = OrphanLimit(int(sys.argv[1]))  # first: what is read may be a store that connects
    start: WriterStart = pickle.load(sys.stdin.buffer)  # noqa: S301  from the rank that has started this process
    with contextlib.suppress(OSError):
        os.nice(5)
    Writer(start, limit).run()


if __name__ == "__main__":
    main()
