"""The image of a part's file in memory: the bytes that ``torch.save`` writes for each piece, with room for its data.

The room is filled with one copy for each piece; nothing else of the file changes from checkpoint to checkpoint. What
``torch.save`` writes is a zip archive; the writer puts in its checksums, which are not known before.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch.serialization import skip_data

#: Pieces begin at multiples of it, so that their numbers do, too, as ``torch.save`` places them.
ALIGNMENT = 64


@dataclass(frozen=True)
class Hole:
    """The room for a piece's numbers."""

    offset: int  # in bytes, from the beginning
    size: int  # in bytes
    checksums: tuple[int, ...]  # where the CRC-32 of these bytes belongs, four bytes each


@dataclass(frozen=True)
class Frame:
    """A saved tensor without its data."""

    size: int  # of all, in bytes
    texts: tuple[tuple[int, bytes], ...]  # (offset, bytes) of what is not its numbers
    hole: Hole | None  # None: it has no numbers


@functools.lru_cache(maxsize=4096)
def make_frame(shape: tuple[int, ...], dtype: torch.dtype) -> Frame:
    """Return the bytes that ``torch.save`` writes for a contiguous tensor of this shape and type."""
    with open(os.memfd_create("spark_estimator frame", os.MFD_CLOEXEC), "w+b") as stream:  # the numbers take no memory
        with skip_data():
            torch.save(torch.empty(shape, dtype=dtype), stream)
        size = stream.seek(0, os.SEEK_END)
        hole = None
        for info, entry in _list_entries(stream):
            if info.filename.rpartition("/")[0].endswith("/data") and info.file_size:
                name, extra = struct.unpack("<HH", _read(stream, info.header_offset + 26, 4))
                offset = info.header_offset + 30 + name + extra
                # After the data there is a descriptor: its signature, then the checksum.
                hole = Hole(offset, info.file_size, (offset + info.file_size + 4, entry + 16))
        spans = [(0, size)] if hole is None else [(0, hole.offset), (hole.offset + hole.size, size)]
        return Frame(size, tuple((start, _read(stream, start, stop - start)) for start, stop in spans), hole)


def move_hole(hole: Hole, offset: int) -> Hole:
    """Return the same room in a file in which the piece begins at an offset."""
    return Hole(hole.offset + offset, hole.size, tuple(position + offset for position in hole.checksums))


def align(offset: int) -> int:
    """Return the next offset at which a piece can begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def save_to_bytes(value: object) -> bytes:
    """Return an object as ``torch.save`` writes it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _list_entries(stream: BinaryIO) -> Iterator[tuple[zipfile.ZipInfo, int]]:
    """Yield the entries of the archive, and the offset of each in the central directory."""
    archive = zipfile.ZipFile(stream)
    position = archive.start_dir
    for info in archive.infolist():
        yield info, position
        position += 46 + sum(struct.unpack("<HHH", _read(stream, position + 28, 6)))


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return stream.read(size)
