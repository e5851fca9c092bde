"""How many values a row has in each column: from shapes, the first rows, or the longest array of all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_estimator.data.columns import Readable
from spark_estimator.errors import DataError

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Ragged:
    """How arrays of different lengths are handled.

    Attributes:
        padding: the fill value of all array columns, or of each by name; None: different lengths are an error.
        input_shapes, label_shapes: the estimator's parameters; None: not set.
    """

    padding: float | Mapping[str, float] | None = None
    input_shapes: Shapes | None = None
    label_shapes: Shapes | None = None

    def find_paddings(self, fed: Sequence[Readable]) -> tuple[float | None, ...]:
        """Return [columns] the fill value of each column's arrays; None: there is none.

        Raises:
            DataError: padding refers to a column that holds no arrays, or that cannot hold the fill value.
        """
        named: Mapping[str, float] = self.padding if isinstance(self.padding, Mapping) else {}
        columns = {column.name: column for column in fed}
        for name in named:
            if name not in columns:
                raise DataError(f"padding refers to {name!r}, which isn't a feature or a label: {', '.join(columns)}.")
            if not _is_array(columns[name]):
                raise DataError(
                    f"padding refers to column {name!r} ({columns[name].kind}), which isn't an array column."
                )
        paddings = []
        for column in fed:
            number = named.get(column.name) if isinstance(self.padding, Mapping) else self.padding
            number = number if _is_array(column) else None
            if number is not None and column.dtype == "int64" and not float(number).is_integer():
                raise DataError(
                    f"padding={number!r} isn't valid for integer column {column.name!r} ({column.kind}). Use a whole "
                    "number."
                )
            paddings.append(number)
        return tuple(paddings)

    def find_widths(
        self,
        shown: Sequence[int | None],
        fed: Sequence[Readable],
        padding: Sequence[float | None],
        features: int,
        longest: Callable[[Sequence[int]], list[int]],
    ) -> tuple[int, ...]:
        """Return [columns] values per row of each tensor.

        Args:
            shown: [columns] in the first rows; None where rows differ.
            padding: [columns] as `find_paddings`.
            features: the number of columns that are inputs; labels follow.
            longest: measures, over all rows, the columns at these positions.

        Raises:
            DataError: a column without a fill value has arrays of different lengths.
        """
        widths: list[int | None] = []
        for column, width, number in zip(fed, shown, padding, strict=True):
            if width is None and number is None:
                raise DataError(
                    f"column {column.name!r} has {'vectors' if column.kind == 'vector' else 'arrays'} of different "
                    "lengths, or nulls, in its first rows. "
                    + (
                        "A tensor needs vectors of one length: pad or truncate them."
                        if column.kind == "vector"
                        else "Set padding=0 (or another number) to pad them to the longest array's length, or truncate "
                        "them."
                    )
                )
            widths.append(width if number is None else None)
        widths = self._apply_shapes(widths, features)
        unknown = [position for position, width in enumerate(widths) if width is None]
        for position, width in zip(unknown, longest(unknown) if unknown else [], strict=True):
            if not width:
                raise DataError(f"all arrays of column {fed[position].name!r} are empty or null.")
            widths[position] = width
        return tuple(width for width in widths if width is not None)

    def _apply_shapes(self, widths: Sequence[int | None], features: int) -> list[int | None]:
        """Return the widths, with those of input_shapes and label_shapes."""
        sizes = list(widths)
        inputs = [math.prod(shape[1:]) for shape in self.input_shapes or ()]
        if len(inputs) == features:
            sizes[:features] = [size if width is None else width for width, size in zip(sizes, inputs, strict=False)]
        elif len(inputs) == 1 and sizes[:features].count(None) == 1:
            # One input of all columns side by side: the column has what the others leave.
            rest = inputs[0] - sum(width for width in sizes[:features] if width is not None)
            sizes[sizes.index(None)] = rest if rest > 0 else None
        for label, shape in enumerate(self.label_shapes or ()):
            if sizes[features + label] is None:
                sizes[features + label] = math.prod(shape[1:])
        return sizes


def _is_array(column: Readable) -> bool:
    """Return whether arrays may differ in length: vectors and the results of decoders may not."""
    return column.is_array and column.kind not in ("vector", "binary")
