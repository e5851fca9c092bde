"""The image of a part's file in memory: the bytes that ``torch.save`` writes for each piece, with room for its data.

The room is filled with one copy for each piece; nothing else of the file changes from checkpoint to checkpoint. What
``torch.save`` writes is a zip archive; the writer puts in its checksums, which are not known before.
"""

from __future__ import annotations

import functools
import io
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, cast

import torch
from torch.serialization import skip_data

#: Pieces begin at multiples of it, so that their numbers do, too, as ``torch.save`` places them.
ALIGNMENT = 64


@dataclass(frozen=True)
class Hole:
    """The room for a piece's numbers.

    Attributes:
        offset, size: in bytes, from the beginning.
        checksums: where the CRC-32 of these bytes belongs, four bytes each.
    """

    offset: int
    size: int
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """A saved tensor without its data.

    Attributes:
        size: of all, in bytes.
        texts: (offset, bytes) of what is not its numbers.
        hole: None: it has no numbers.
    """

    size: int
    texts: tuple[tuple[int, bytes], ...]
    hole: Hole | None


@functools.lru_cache(maxsize=4096)
def frame_of(shape: tuple[int, ...], dtype: torch.dtype) -> Frame:
    """The bytes that ``torch.save`` writes for a contiguous tensor of this shape and type."""
    stream = _Sparse()
    with skip_data():
        torch.save(torch.empty(shape, dtype=dtype), cast(IO[bytes], stream))
    texts = stream.merged()
    directory = _directory(texts, stream.size)
    hole = None
    for info, entry in directory:
        if info.filename.rpartition("/")[0].endswith("/data") and info.file_size:
            header = _at(texts, info.header_offset, 30)
            name, extra = struct.unpack_from("<HH", header, 26)
            offset = info.header_offset + 30 + name + extra
            # After the data there is a descriptor: its signature, then the checksum.
            hole = Hole(offset, info.file_size, (offset + info.file_size + 4, entry + 16))
    return Frame(stream.size, tuple(texts), hole)


def moved(hole: Hole, offset: int) -> Hole:
    """The same room in a file in which the piece begins at an offset."""
    return Hole(hole.offset + offset, hole.size, tuple(place + offset for place in hole.checksums))


def aligned(offset: int) -> int:
    """The next place where a piece can begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def packed(value: object) -> bytes:
    """An object as ``torch.save`` writes it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class _Sparse(io.RawIOBase):
    """Keeps what is written, but not the gaps over which a writer moves on."""

    def __init__(self) -> None:
        self._texts: list[tuple[int, bytes]] = []
        self._position = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        text = bytes(memoryview(content).cast("B"))  # type: ignore[arg-type]
        self._texts.append((self._position, text))
        self._position += len(text)
        self.size = max(self.size, self._position)
        return len(text)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def merged(self) -> list[tuple[int, bytes]]:
        """The written ranges, with neighbours joined."""
        result: list[tuple[int, bytes]] = []
        for offset, text in sorted(self._texts):
            if result and result[-1][0] + len(result[-1][1]) == offset:
                result[-1] = (result[-1][0], result[-1][1] + text)
            else:
                result.append((offset, text))
        return result


def _directory(texts: Sequence[tuple[int, bytes]], size: int) -> list[tuple[zipfile.ZipInfo, int]]:
    """The entries of the archive, and the offset of each in its central directory."""
    last_offset, last = texts[-1]  # after the last gap: the directory is in it
    archive = zipfile.ZipFile(_View(texts, size))
    result, place = [], last.index(b"PK\x01\x02")
    for info in archive.infolist():
        result.append((info, last_offset + place))
        place += 46 + sum(struct.unpack_from("<HHH", last, place + 28))
    return result


def _at(texts: Sequence[tuple[int, bytes]], offset: int, size: int) -> bytes:
    return next(text[offset - first :][:size] for first, text in texts if first <= offset < first + len(text))


class _View(io.RawIOBase):
    """Reads texts as if they were one file, with zeros between them."""

    def __init__(self, texts: Sequence[tuple[int, bytes]], size: int) -> None:
        self._texts = texts
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._position + size)
        result = bytearray(max(0, stop - self._position))
        for first, text in self._texts:
            start, end = max(first, self._position), min(first + len(text), stop)
            if start < end:
                result[start - self._position : end - self._position] = text[start - first : end - first]
        self._position = max(self._position, stop)
        return bytes(result)
