"""What a rank's writer does with a copy of a `Checkpointer`: writes the rank's part, on rank 0 the checkpoint's index.

It runs in the writer's process, which imports neither torch nor numpy.
"""

from __future__ import annotations

import json
import os
import posixpath
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, BinaryIO

from spark_estimator.checkpoint.orphan_limit import GRACE
from spark_estimator.checkpoint.writer import GivenUpError, PendingCopy, Writer
from spark_estimator.extensions.checkpoint import folders
from spark_estimator.extensions.checkpoint.metadata_text import Note, SavedObject, SavedPiece, make_metadata
from spark_estimator.store import FilesystemStore
from spark_estimator.store.replacement import make_folders

_SHORTEST_POLL, _LONGEST_POLL = 0.02, 1.0
#: The file is written in pieces of this size in bytes: between two of them the writer checks whether it is still
#: needed.
CHUNK_BYTES = 1 << 20


class WritePart:
    """Writes a rank's part. Sent to the writer by pickle.

    Args:
        store: into which it writes.
    """

    def __init__(self, store: FilesystemStore) -> None:
        self._store = store
        self._complete: set[folders.Folder] = set()
        self._has_marks = True  # of trainings that have begun

    def __call__(self, writer: Writer, copy: PendingCopy) -> int:
        """Write one copy, again if the store fails. Return the part's bytes."""
        return writer.retry(lambda: self._write_part(writer, copy), copy.ticket)

    def _write_part(self, writer: Writer, copy: PendingCopy) -> int:
        """Write this rank's part, and on rank 0 the file that completes the checkpoint. Return the part's bytes."""
        ticket, job, view = copy.ticket, copy.job, copy.view
        self._check_superseded(writer, job["path"])
        table = json.loads(bytes(view[job["table"][0] : sum(job["table"])]))
        path, rank, end = job["path"], job["rank"], job["end"]
        if "://" in path:
            self._store.fs.makedirs(path, exist_ok=True)
        else:
            make_folders(path)
        file = folders.make_part_name(rank)
        began = time.monotonic()
        objects, offset = [], end
        for key, where, first, length in job["objects"]:
            objects.append((SavedObject(key, where, offset, length), view[first : first + length]))
            offset += length

        def read_content() -> Any:
            yield from chunks(view, end, table["holes"])
            for _, text in objects:
                yield text

        with self._store.open(posixpath.join(path, file), "wb") as stream:
            size = write_all(stream, read_content(), lambda: writer.check(ticket))
        pieces = [SavedPiece(**piece) for piece in table["pieces"]]
        note = Note(rank, file, size, table["structure"], pieces, [saved for saved, _ in objects])
        self._store.write(posixpath.join(path, folders.make_note_name(rank)), json.dumps(note.to_json()).encode())
        if rank == 0:
            self._complete_with_all(writer, ticket, job, timedelta(seconds=2 * (time.monotonic() - began)))
        return size

    def _complete_with_all(self, writer: Writer, ticket: int, job: dict[str, Any], grace: timedelta) -> None:
        path = job["path"]
        names = [folders.make_note_name(rank) for rank in range(job["size"])]
        self._await(writer, ticket, path, set(names), max(grace, GRACE))
        notes = []
        for name in names:
            writer.check(ticket)
            notes.append(Note.from_json(json.loads(self._store.read(posixpath.join(path, name)))))
        writer.check(ticket)
        self._store.write(posixpath.join(path, folders.METADATA), make_metadata(notes, path))
        # Nothing hangs on what follows: what cannot be removed stays.
        try:
            for name in names:
                writer.advance()
                self._store.remove(posixpath.join(path, name))
            self._clean(writer, job)
        except Exception as error:
            writer.send_report(ticket=ticket, note=f"older checkpoints in {posixpath.dirname(path)} stay: {error}")

    def _await(self, writer: Writer, ticket: int, path: str, names: set[str], grace: timedelta) -> None:
        """Wait until the folder has these files."""
        pause, until = _SHORTEST_POLL, float("inf")
        while True:
            missing = names - {posixpath.basename(entry.path) for entry in self._store.entries(path)}
            if not missing:
                return
            writer.check(ticket)
            self._check_superseded(writer, path)
            if writer.is_orphan:
                until = min(until, time.monotonic() + grace.total_seconds())
            if time.monotonic() > until:
                raise GivenUpError(f"the ranks of {', '.join(sorted(missing))} have not written their parts")
            writer.pause(pause)
            pause = min(2 * pause, _LONGEST_POLL)

    def _check_superseded(self, writer: Writer, path: str) -> None:
        """Raise GivenUpError if the rank has ended, and a training that began later has saved a checkpoint here.

        Its ranks have dropped their copies of this one: the parts of other ranks would never arrive.
        """
        root, folder = posixpath.dirname(path), folders.Folder.parse(posixpath.basename(path))
        if not writer.is_orphan or folder is None:
            return
        newer = [other for other in folders.list_folders(self._store, root) if other > folder]
        if any(folders.is_complete(self._store, root, other) for other in newer):
            raise GivenUpError(f"{root} has a newer checkpoint than that of step {folder.step}")

    def _clean(self, writer: Writer, job: dict[str, Any]) -> None:
        root, folder_name = posixpath.split(job["path"])
        written = folders.Folder.parse(folder_name)
        if self._has_marks and written is not None:
            for generation, path in folders.find_marks(self._store, root).items():
                if generation <= written.generation:
                    writer.advance()
                    self._store.remove(path)
            self._has_marks = False
        present = folders.list_folders(self._store, root)
        self._complete &= set(present)
        for folder in present:
            writer.advance()
            if folder not in self._complete and folders.is_complete(self._store, root, folder):
                self._complete.add(folder)
        every = None if job["keep_every"] is None else timedelta(seconds=job["keep_every"])
        for folder in folders.find_expendable(present, self._complete, job["keep"], every):
            writer.advance()
            path = posixpath.join(root, folder.name)
            if folder in self._complete:  # first what makes it a checkpoint
                self._store.remove(posixpath.join(path, folders.METADATA))
            self._store.remove(path)


def chunks(view: memoryview, end: int, holes: Sequence[tuple[int, int, Sequence[int]]]) -> Iterator[memoryview]:
    """Yield the bytes of a part up to `end`, with the checksums in their places.

    Args:
        view: of the slot.
        holes: (offset, size, where the CRC-32 of these bytes belongs) of the pieces' numbers, in their order.
    """
    checksums: dict[int, bytes] = {}
    done = 0
    for offset, size, places in [*holes, (end, 0, ())]:
        yield from _with_checksums(view, done, offset, checksums)
        checksum = 0
        for start in range(offset, offset + size, CHUNK_BYTES):
            chunk = view[start : min(start + CHUNK_BYTES, offset + size)]
            checksum = zlib.crc32(chunk, checksum)
            yield chunk
        checksums = {place: struct.pack("<I", checksum) for place in places}
        done = offset + size


def _with_checksums(view: memoryview, start: int, stop: int, checksums: dict[int, bytes]) -> Iterator[memoryview]:
    if start < stop:
        text = bytearray(view[start:stop])
        for place, checksum in checksums.items():
            text[place - start : place - start + 4] = checksum
        yield memoryview(text)


def write_all(file: BinaryIO, pieces: Iterator[Any], is_wanted: Callable[[], None]) -> int:
    """Write all to a file and, where it is this machine's, to the disk. Return the number of bytes.

    Args:
        is_wanted: called between the pieces; raises to stop.
    """
    size = 0
    for piece in pieces:
        is_wanted()
        view = memoryview(piece).cast("B")
        size += len(view)
        while view:
            view = view[file.write(view) :]
    file.flush()
    try:
        descriptor = file.fileno()
    except (AttributeError, OSError):
        return size
    os.fsync(descriptor)
    return size
