"""`FileSaver`: one file that is replaced repeatedly, by a process beside the one that makes its content."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from spark_estimator.checkpoint.shared_control import SlotState
from spark_estimator.checkpoint.writer import WriteFile
from spark_estimator.checkpoint.writer_link import Report, WriterLink
from spark_estimator.errors import remove_links
from spark_estimator.store import FilesystemStore, Store
from spark_estimator.store.digests import make_seal


class FileSaver:
    """Copies contents into memory that its writer shares, and returns; a newer one replaces one that waits.

    Args:
        write: ``write(path, content)`` puts a file in place; it is sent to the writer by pickle.
    """

    def __init__(self, write: Callable[[str, bytes], None]) -> None:
        self._link = WriterLink(WriteFile(write))
        self._tickets = 0

    def put(self, path: str, content: memoryview) -> bool:
        """Submit a content, to be sealed and written. Return whether it replaces one that waits."""
        link = self._link
        number, replaced = link.take_slot(replaces=SlotState.GO)
        slot = link.slots[number]
        end = len(content)
        slot.put(0, content)
        job = json.dumps({"path": path, "end": end}).encode()
        slot.put(end, job)
        link.submit(number, self._tickets, (end, len(job)), now=True)
        self._tickets += 1
        return replaced is not None

    def read_reports(self) -> list[Report]:
        """Return the results of contents since the last call."""
        return self._link.read_reports()

    def wait(self, timeout: timedelta | None = None) -> list[Report]:
        """Wait until all is written or has failed, or for this time. Return the results."""
        result: list[Report] = []
        left = timedelta.max if timeout is None else timeout
        step = timedelta(seconds=0.05)
        while self._link.control.is_busy and left > timedelta(0):
            result += self._link.read_reports(step)
            left -= step
        return [*result, *self._link.read_reports()]

    def close(self) -> None:
        """Let the writer end when it is done. Call `wait` first."""
        self._link.close(None)


class DirectSaver:
    """As `FileSaver`, but writes in this process before `put` returns: for a store that may be in its memory."""

    def __init__(self, write: Callable[[str, bytes], None]) -> None:
        self._write = write
        self._reports: list[Report] = []

    def put(self, path: str, content: memoryview) -> bool:
        """Seal a content and write it. Return False: none waits, so none is replaced."""
        text = bytes(content)
        try:
            self._write(path, text + make_seal(text))
        except Exception as error:  # as the writer does
            name = type(error).__name__
            self._reports.append(Report(0, path, f"{name}: {remove_links(str(error))}", name, bytes=len(text)))
        else:
            self._reports.append(Report(0, path, bytes=len(text)))
        return False

    def read_reports(self) -> list[Report]:
        """Return the results of contents since the last call."""
        result, self._reports = self._reports, []
        return result

    def wait(self, timeout: timedelta | None = None) -> list[Report]:
        """Return what `read_reports` does."""
        return self.read_reports()

    def close(self) -> None:
        """Do nothing: nothing is left to do."""


def make_saver(store: Store, write: Callable[[str, bytes], None]) -> FileSaver | DirectSaver:
    """Return the saver that can write to this store. Arguments as of `FileSaver`."""
    return DirectSaver(write) if is_in_memory(store) else FileSaver(write)


def is_in_memory(store: Store) -> bool:
    """Return whether another process may not see what is written: fsspec's ``memory://``, and stores of users' own
    kinds.
    """
    return not isinstance(store, FilesystemStore) or store.prefix_path.startswith("memory:")
