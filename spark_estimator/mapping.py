"""Maps files into memory that no core dump has: a crash writes the process's own memory only.

The kernel counts a file without a name (memfd, or removed) as memory of the process. Its dump reads the whole file, and
so allocates pages for the parts that have none: for a segment, up to all of the machine's memory.
"""

from __future__ import annotations

import mmap


def map_file(descriptor: int, size: int = 0, *, writable: bool = True) -> mmap.mmap:
    """Return a file's bytes, shared with all that map it.

    Args:
        descriptor: may be closed afterwards.
        size: 0: the whole file.
    """
    mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_DONTDUMP)
    return mapped
