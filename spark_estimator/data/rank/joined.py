"""Narrow columns of one type side by side in the spool: the values of a row are adjacent, for one gather to read.

A gather reads whole cache lines. Twenty columns of four bytes in separate files cost twenty lines a row, in one matrix
two; a batch is then small enough to be taken apart within the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from spark_estimator.data.fields import Array, Field

# Wider fields fill whole cache lines, and taking them out of a matrix would cost another copy.
_NARROW_BYTES = 64
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Joined:
    """Fields, and those in which they are spooled.

    Attributes:
        fields: as batches have them.
        stored: as the spool has them.
        places: [fields] the number of the stored field, and where its values begin in a row of that.
    """

    fields: tuple[Field, ...]
    stored: tuple[Field, ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def from_fields(cls, fields: Sequence[Field]) -> Joined:
        """Put narrow fields of one type together."""
        members: list[list[Field]] = []
        widths: list[int] = []
        group_of: dict[str, int] = {}
        positions = []
        for field in fields:
            number = group_of.get(field.dtype) if field.row_bytes <= _NARROW_BYTES else None
            if number is None:
                number = len(members)
                members.append([])
                widths.append(0)
                if field.row_bytes <= _NARROW_BYTES:
                    group_of[field.dtype] = number
            positions.append((number, widths[number]))
            members[number].append(field)
            widths[number] += field.width
        return cls(tuple(fields), tuple(_join_fields(member) for member in members), tuple(positions))

    def gather(self, matrices: Sequence[Array], numbers: Array) -> list[Array]:
        """Return some rows, as batches have them; see `split`.

        Args:
            matrices: [stored] all rows, each [rows, width].
            numbers: [rows] of those to gather.
        """
        if len(numbers) <= _BLOCK_ROWS:
            return self.split([matrix.take(numbers, axis=0) for matrix in matrices])
        rows = len(numbers)
        columns: dict[int, Array] = {}
        whole: dict[int, Array] = {}
        for number, (stored, matrix) in enumerate(zip(self.stored, matrices, strict=True)):
            if _are_scalars(stored):
                columns[number] = numpy.empty((stored.width, rows), matrix.dtype)
            elif len(stored.widths) == 1:
                whole[number] = matrix.take(numbers, axis=0)
        result = []
        parts: dict[int, list[tuple[Array, int]]] = {}
        for field, (number, start) in zip(self.fields, self.places, strict=True):
            if number in columns and field.shape == ():
                result.append(columns[number][start])
            elif number in whole:
                result.append(whole[number].reshape(rows, *field.shape))
            else:
                values = numpy.empty((rows, field.width), matrices[number].dtype)
                parts.setdefault(number, []).append((values, start))
                result.append(values.reshape(rows, *field.shape))
        # By blocks of rows that stay in the core's cache until they are taken apart.
        for number in {*columns, *parts}:
            for first in range(0, rows, _BLOCK_ROWS):
                block = matrices[number].take(numbers[first : first + _BLOCK_ROWS], axis=0)
                last = first + len(block)
                if number in columns:
                    columns[number][:, first:last] = block.T
                for values, start in parts.get(number, ()):
                    values[first:last] = block[:, start : start + values.shape[1]]
        return result

    def split(self, matrices: Sequence[Array]) -> list[Array]:
        """Return rows as the spool has them, as batches have them.

        Args:
            matrices: [stored] each [rows, width]; no other code uses them.

        Returns:
            [fields] each [rows, *shape], contiguous, in memory that no two share.
        """
        # Of a matrix of scalars one transposition makes all columns.
        columns = {
            number: numpy.ascontiguousarray(matrices[number].T)
            for number, stored in enumerate(self.stored)
            if _are_scalars(stored)
        }
        result = []
        for field, (number, start) in zip(self.fields, self.places, strict=True):
            matrix = matrices[number]
            if field.shape == () and number in columns:
                result.append(columns[number][start])
                continue
            values = matrix if field.width == matrix.shape[1] else matrix[:, start : start + field.width]
            result.append(numpy.ascontiguousarray(values).reshape(len(matrix), *field.shape))
        return result


def _are_scalars(stored: Field) -> bool:
    return len(stored.widths) > 1 and set(stored.widths) == {1}


def _join_fields(fields: Sequence[Field]) -> Field:
    if len(fields) == 1:
        return fields[0]
    padding = tuple(value for field in fields for value in field.padding or (None,) * len(field.columns))
    return replace(
        fields[0],
        names=tuple(name for field in fields for name in field.names),
        columns=tuple(column for field in fields for column in field.columns),
        widths=tuple(width for field in fields for width in field.widths),
        shape=(sum(field.width for field in fields),),
        padding=padding if any(value is not None for value in padding) else (),
    )
