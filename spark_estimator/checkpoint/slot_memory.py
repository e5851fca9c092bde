"""Memory that a rank and its writer share, without a name: it is freed when both have ended."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from spark_estimator.mapping import map_file
from spark_estimator.posix import libc

_MADV_POPULATE_WRITE = 23


def create_descriptor(name: str, size: int) -> int:
    """Return the descriptor of a new file in memory; close it."""
    descriptor = os.memfd_create(f"spark_estimator checkpoint {name}", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


class SlotMemory:
    """Room for one copy of the state, as the rank sees it. It grows and never shrinks.

    Attributes:
        descriptor: of the file in memory.
        view: of its bytes.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0

    @property
    def view(self) -> mmap.mmap:
        assert self._map is not None, "make_room() comes first"
        return self._map

    def make_room(self, size: int) -> bool:
        """Grow to at least this number of bytes. Return whether `view` has been replaced."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if size <= self._size:
            return False
        if size > os.fstat(self.descriptor).st_size:  # `put` may have made more room
            os.ftruncate(self.descriptor, size)
        self._map, self._size = map_file(self.descriptor, size), size
        return True

    def populate(self) -> None:
        """Make the kernel allocate all pages now: the first copy would wait for each of them.

        Other threads keep running.
        """
        view = self.view
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        with contextlib.suppress(OSError):  # Linux before 5.14 lacks the call
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(self._size), _MADV_POPULATE_WRITE)

    def put(self, offset: int, content: bytes | memoryview) -> None:
        """Write bytes behind what the view is used for; make room without a new view."""
        end = offset + len(content)
        if end > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, end)
        view = memoryview(content)
        while view:
            written = os.pwrite(self.descriptor, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """Close the descriptor; the view is freed when nothing uses it."""
        self._map = None
        os.close(self.descriptor)
