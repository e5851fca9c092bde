"""Limits on the disk and memory of a rank's rows, and the resulting sizes for reading and mixing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_estimator.data.fields import Field

#: Memory of each rank, unless the user sets another limit.
BUFFER_BYTES = 256 << 20
# More row groups at a time mix rows no better, and each costs an open file and a page of each column.
_MOST_STREAMS = 8
_LEAST_WINDOWS = 16
# Nothing is read ahead of an epoch's first window: the first one is this part of a full one.
_FIRST_WINDOW = 8
# A page of a column, decoded: writers end it at 20,000 values or 1 MiB.
_PAGE_BYTES = 256 << 10
_COLUMN_BYTES = (16 << 10, 1 << 20)
# Decoded rows are copied into a window while they are in a core's cache. Each column of a batch costs some calls that
# need the interpreter's lock: many columns are worth more rows.
_DECODED_BYTES = 768 << 10
_DECODED_COLUMN_BYTES = 96 << 10


@dataclass(frozen=True)
class RowLimits:
    """The user's limits. They are sent to the ranks.

    Attributes:
        cache_bytes: of a host's disk, for all of its ranks together; rows beyond are read from their files in each
            epoch.
        buffer_bytes: of each rank's memory, for rows that are mixed and read ahead. Parquet's pages, one of each column
            and row group that is read, are added if it is smaller than these.
    """

    cache_bytes: int
    buffer_bytes: int = BUFFER_BYTES

    @classmethod
    def from_parameters(cls, cache_bytes: int | None, buffer_bytes: int | None) -> RowLimits | None:
        """Return the limits of two parameters; None without any.

        Raises:
            ValueError: one of them is negative, or `buffer_bytes` is set alone.
        """
        if cache_bytes is None:
            if buffer_bytes is not None:
                raise ValueError(
                    f"buffer_bytes={buffer_bytes} needs cache_bytes: without that limit all rows are kept on disk, and "
                    "none in memory. cache_bytes=0 keeps none on disk."
                )
            return None
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be 0 or more; got {cache_bytes}.")
        if buffer_bytes is not None and buffer_bytes < 1:
            raise ValueError(f"buffer_bytes must be at least 1; got {buffer_bytes}.")
        return cls(cache_bytes, BUFFER_BYTES if buffer_bytes is None else buffer_bytes)


@dataclass(frozen=True)
class Mixing:
    """How rows are mixed: a *window* of rows is in memory at a time, and its rows are read in any order.

    Attributes:
        window_rows: the most rows of a window.
        first_rows: the most rows of an epoch's first window. Each next one may have twice as many, up to `window_rows`.
        streams: the most row groups that are read side by side; a window has rows of each.
    """

    window_rows: int
    streams: int
    first_rows: int

    @classmethod
    def from_window(cls, window_rows: int, streams: int) -> Mixing:
        """Return a mixing with a first window that is soon read."""
        return cls(window_rows, min(streams, window_rows), max(1, window_rows // _FIRST_WINDOW))


@dataclass(frozen=True)
class Buffers:
    """How a rank divides its memory: three eighths for each of two windows, an eighth for rows that are decoded.

    Attributes:
        mixing: of the windows.
        decoded_rows: rows of each row group that are decoded at a time.
        column_bytes: encoded bytes of each column that are read at a time.
    """

    mixing: Mixing
    decoded_rows: int
    column_bytes: int

    @classmethod
    def from_limit(cls, buffer_bytes: int, fields: Sequence[Field], columns: int) -> Buffers:
        """Return buffers for rows of these fields.

        Args:
            columns: that are read from the files.
        """
        row_bytes = max(1, sum(field.row_bytes for field in fields))
        eighth = buffer_bytes // 8
        streams = max(1, min(_MOST_STREAMS, eighth // (max(1, columns) * _PAGE_BYTES)))
        decoded_bytes = min(max(_DECODED_BYTES, columns * _DECODED_COLUMN_BYTES), eighth // streams)
        decoded = max(1, decoded_bytes // row_bytes)
        least, most = _COLUMN_BYTES
        column = max(least, min(most, eighth // streams // max(1, columns)))
        window = max(1, 3 * eighth // row_bytes)
        return cls(Mixing.from_window(window, streams), decoded, column)

    def fit_to_share(self, rows: int) -> Buffers:
        """Return the same for a rank with few rows, which make several windows, too."""
        window = max(1, min(self.mixing.window_rows, -(-rows // _LEAST_WINDOWS)))
        return replace(self, mixing=Mixing.from_window(window, self.mixing.streams))
