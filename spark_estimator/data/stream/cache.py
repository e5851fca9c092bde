"""Rows of files that a rank keeps on its host's disk, up to a limit, so that later epochs need not decode them.

The rows that fit are chosen once, from the beginning of the rank's stretch, and stay: if all rows are read in each
epoch, replacing some by others would save nothing. Files have no names, so that they are freed when the process ends. A
range is used once all of it has been written. A disk that is full costs speed, and no error.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank.shares import Range
from spark_estimator.data.rank.spool import find_spool_folder, open_nameless_file, require_room, write_all
from spark_estimator.data.stream.pieces import Matrices
from spark_estimator.errors import DataError
from spark_estimator.log import get_logger
from spark_estimator.mapping import map_file

_log = get_logger(__name__)


class _Filled(enum.Enum):
    """How far a range is: from EMPTY to PART with its first rows, to WHOLE with its last ones; PART again to EMPTY."""

    EMPTY = enum.auto()
    PART = enum.auto()
    WHOLE = enum.auto()


@dataclass
class _Place:
    """The position of a cached range."""

    first: int
    rows: int
    state: _Filled = _Filled.EMPTY


@dataclass
class DiskCache:
    """The kept rows of one rank.

    Attributes:
        fields: of the rows.
        places: by the number of the range, where its rows are in the files.
        folder: of the files.
    """

    fields: tuple[Field, ...]
    places: dict[int, _Place]
    folder: str
    _files: list[IO[bytes]] = field(default_factory=list)
    _matrices: list[Array] = field(default_factory=list)

    @classmethod
    def from_ranges(cls, ranges: Sequence[Range], fields: Sequence[Field], most_bytes: int) -> DiskCache:
        """Return a cache for the first ranges that fit into this number of bytes.

        Raises:
            DataError: ranges fit, and the configured folder does not exist on this host.
        """
        row_bytes = max(1, sum(each.row_bytes for each in fields))
        positions: dict[int, _Place] = {}
        rows = 0
        for number, each in enumerate(ranges):
            if (rows + each.rows) * row_bytes <= most_bytes:
                positions[number] = _Place(rows, each.rows)
                rows += each.rows
        # Checked here: a failure after this only costs speed.
        return cls(tuple(fields), positions, find_spool_folder() if positions else "")

    @property
    def rows(self) -> int:
        """Return the rows that there is room for."""
        return sum(place.rows for place in self.places.values())

    def read(self, number: int, start: int, rows: int, batch_rows: int) -> Iterator[Matrices] | None:
        """Return rows of a range; None: the range is not cached completely.

        Args:
            start: the first one, counted in the range.
            batch_rows: that are returned at a time.
        """
        place = self.places.get(number)
        if place is None or place.state is not _Filled.WHOLE:
            return None
        first = place.first + start
        return (
            tuple(matrix[at : min(at + batch_rows, first + rows)] for matrix in self._matrices)
            for at in range(first, first + rows, batch_rows)
        )

    def keep(self, number: int, batches: Iterator[Matrices]) -> Iterator[Matrices]:
        """Yield the same batches, which are all rows of a range from its first one on; write them to the cache."""
        place = self.places.get(number)
        if place is None or place.state is not _Filled.EMPTY:
            yield from batches
            return
        place.state, done = _Filled.PART, 0
        try:
            for batch in batches:
                if number in self.places:
                    self._write(place.first + done, batch)
                    done += len(batch[0])
                yield batch
        finally:
            place.state = _Filled.WHOLE if done == place.rows else _Filled.EMPTY

    def _write(self, first: int, batch: Matrices) -> None:
        try:
            if not self._files:
                self._open()
            require_room(self.folder, sum(matrix.nbytes for matrix in batch))
            for each, file, matrix in zip(self.fields, self._files, batch, strict=True):
                write_all(file.fileno(), matrix, first * each.row_bytes)
        except (OSError, DataError) as error:
            _log.warning(
                "rows cannot be kept in %s (%s): they are read from their files in each epoch", self.folder, error
            )
            self.places.clear()

    def _open(self) -> None:
        rows = self.rows
        for each in self.fields:
            file = open_nameless_file(self.folder)
            self._files.append(file)
            size = rows * each.row_bytes
            os.ftruncate(file.fileno(), size)  # without blocks until they are written
            if not size:
                self._matrices.append(numpy.empty((rows, each.width), each.stored_dtype))
                continue
            memory = map_file(file.fileno(), size, writable=False)
            self._matrices.append(numpy.frombuffer(memory, each.stored_dtype).reshape(rows, each.width))
