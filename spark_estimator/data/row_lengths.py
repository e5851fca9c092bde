"""How many values a row has in each column: what shapes say, what the first rows show, or the longest of all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_estimator.data.columns import Readable
from spark_estimator.errors import DataError

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Ragged:
    """What is done with arrays of different lengths.

    Attributes:
        padding: fills them up, in all columns of arrays, or in those that are named; None: they are refused.
        input_shapes, label_shapes: as the estimator's parameters; None: nothing is said.
    """

    padding: float | Mapping[str, float] | None = None
    input_shapes: Shapes | None = None
    label_shapes: Shapes | None = None

    def paddings(self, fed: Sequence[Readable]) -> tuple[float | None, ...]:
        """[columns] what fills up each column's arrays; None: nothing does.

        Raises:
            DataError: a column that is named holds no arrays, or no such numbers.
        """
        named: Mapping[str, float] = self.padding if isinstance(self.padding, Mapping) else {}
        there = {one.name: one for one in fed}
        for name in named:
            if name not in there:
                raise DataError(f"padding names {name!r}, which is no feature and no label: {', '.join(there)}.")
            if not _is_array(there[name]):
                raise DataError(f"padding names {name!r}, which is of type {there[name].kind} and holds no arrays.")
        found = []
        for one in fed:
            number = named.get(one.name) if isinstance(self.padding, Mapping) else self.padding
            number = number if _is_array(one) else None
            if number is not None and one.dtype == "int64" and not float(number).is_integer():
                raise DataError(f"padding={number!r}: column {one.name!r} of type {one.kind} has no such number.")
            found.append(number)
        return tuple(found)

    def widths(
        self,
        shown: Sequence[int | None],
        fed: Sequence[Readable],
        padding: Sequence[float | None],
        features: int,
        longest: Callable[[Sequence[int]], list[int]],
    ) -> tuple[int, ...]:
        """[columns] values a row of each tensor.

        Args:
            shown: [columns] in the first rows; None where rows differ.
            padding: [columns] as `paddings`.
            features: so many of the columns are inputs; labels follow.
            longest: looks at all rows, for the columns with these numbers.

        Raises:
            DataError: a column has arrays of different lengths, which nothing fills up.
        """
        found: list[int | None] = []
        for column, width, number in zip(fed, shown, padding, strict=True):
            if width is None and number is None:
                raise DataError(
                    f"column {column.name!r} holds {'vectors' if column.kind == 'vector' else 'arrays'} of different "
                    "lengths, or nulls, in its first rows. "
                    + (
                        "A tensor needs vectors of one length: pad or cut them."
                        if column.kind == "vector"
                        else "padding=0 (or another number) fills shorter ones up to the longest one's length; or cut "
                        "them."
                    )
                )
            found.append(width if number is None else None)
        found = self._said(found, features)
        unknown = [place for place, width in enumerate(found) if width is None]
        for place, width in zip(unknown, longest(unknown) if unknown else [], strict=True):
            if not width:
                raise DataError(f"column {fed[place].name!r} holds no array with a value in it.")
            found[place] = width
        return tuple(width for width in found if width is not None)

    def _said(self, widths: list[int | None], features: int) -> list[int | None]:
        """With those that shapes decide."""
        found = list(widths)
        inputs = [math.prod(shape[1:]) for shape in self.input_shapes or ()]
        if len(inputs) == features:
            found[:features] = [said if own is None else own for own, said in zip(found, inputs, strict=False)]
        elif len(inputs) == 1 and found[:features].count(None) == 1:
            # All inputs stand side by side: what the others leave is the one's.
            left = inputs[0] - sum(width for width in found[:features] if width is not None)
            found[found.index(None)] = left if left > 0 else None
        for place, shape in enumerate(self.label_shapes or ()):
            if found[features + place] is None:
                found[features + place] = math.prod(shape[1:])
        return found


def _is_array(column: Readable) -> bool:
    """A vector has its size by itself, and what a decoder makes has one shape: they are no arrays."""
    return column.is_array and column.kind not in ("vector", "binary")
