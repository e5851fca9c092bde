"""The rows of a row group that a table's metadata has not deleted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import pyarrow


@dataclass(frozen=True)
class LiveRows:
    """Which rows of a row group are left.

    Attributes:
        of: rows that the row group has.
        rows: that are left.
        bits: Arrow's bitmap of them, compressed: it goes to each rank with the list of files.
    """

    of: int
    rows: int
    bits: bytes

    @classmethod
    def from_mask(cls, mask: pyarrow.BooleanArray) -> LiveRows | None:
        """Return the rows for which `mask` is true; None if these are all."""
        if mask.false_count == 0:
            return None
        bits = numpy.packbits(mask.to_numpy(zero_copy_only=False), bitorder="little")
        return cls(len(mask), mask.true_count, zlib.compress(bits.tobytes(), 1))

    def select(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows that are left of batches that hold all rows in their order."""
        bits = pyarrow.py_buffer(zlib.decompress(self.bits))
        mask = pyarrow.Array.from_buffers(pyarrow.bool_(), self.of, [None, bits])
        start = 0
        for batch in batches:
            left = batch.filter(mask.slice(start, batch.num_rows))
            start += batch.num_rows
            if left.num_rows:
                yield left
