"""Writes one rank's part from shared memory: a piece at a time, with its checksum."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

#: The file is written in pieces of this size in bytes: between two of them the writer checks whether it is still
#: needed.
CHUNK_BYTES = 1 << 20


def chunks(view: memoryview, end: int, holes: Sequence[tuple[int, int, Sequence[int]]]) -> Iterator[memoryview]:
    """The bytes of a part up to `end`, with the checksums in their places.

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


def write(file: BinaryIO, pieces: Iterator[Any], is_wanted: Callable[[], None]) -> int:
    """Writes all to a file and, where it is this machine's, to the disk. Returns the number of bytes.

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
