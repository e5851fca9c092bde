"""Looks at a DataFrame before anything starts: which columns are what, and a few rows of them as Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow

from spark_estimator.data.columns import Readable, readable, selected
from spark_estimator.data.fields import widths_of
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# As many as show whether arrays are of one length, and whether whole numbers are whole.
_SAMPLE_ROWS = 100


@dataclass(frozen=True)
class Columns:
    """The columns that take part, and their first rows.

    Attributes:
        features, labels: in the order in which the model has them.
        weight: of the rows; None without.
        marker: that marks rows for validation; None without.
        rows: at most a hundred, as columns ``c0``, ``c1``, ...: features, labels, weight.
        widths: [columns] values a row; for scalars 1.
    """

    features: tuple[Readable, ...]
    labels: tuple[Readable, ...]
    weight: Readable | None
    marker: Readable | None
    rows: pyarrow.RecordBatch
    widths: tuple[int, ...]

    @property
    def fed(self) -> tuple[Readable, ...]:
        """Those that go into tensors."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))


def look_at(
    frame: DataFrame,
    features: Sequence[str] | None,
    labels: Sequence[str],
    weight: str | None,
    marker: str | None,
    nulls: str | float,
) -> Columns:
    """Finds the columns, and runs one small job for the first rows.

    Args:
        features: None: all columns that have no other part.

    Raises:
        DataError: a column is missing, cannot be trained on, or holds no rows that could be.
    """
    schema = frame.schema
    taken = {*labels, *filter(None, (weight, marker))}
    chosen = [name for name in schema.names if name not in taken] if features is None else list(features)
    if not chosen:
        raise DataError("there are no feature columns: all columns are labels, weights or marks.")
    found = [readable(schema, name) for name in chosen]
    wanted = [readable(schema, name) for name in labels]
    weighing = readable(schema, weight) if weight else None
    marking = readable(schema, marker) if marker else None
    if marking is not None and (
        marking.is_array or marking.kind not in ("boolean", "int", "bigint", "tinyint", "smallint")
    ):
        raise DataError(
            f"validation={marker!r}: a column of type {marking.kind}; it has to be boolean, or hold 0 and 1."
        )
    fed = [*found, *wanted, *([weighing] if weighing else [])]
    # Floating columns as doubles: whether their numbers are whole shall be seen.
    dtypes = ["float64" if one.dtype == "float32" and not one.is_array else one.dtype for one in fed]
    rows = _first_rows(selected(frame, fed, dtypes, nulls), _SAMPLE_ROWS)
    if not rows.num_rows:
        raise DataError("the DataFrame has no rows" + (" without nulls." if nulls == "drop" else "."))
    widths = widths_of(rows, [f"c{number}" for number in range(len(fed))])
    for column, width in zip(fed, widths, strict=True):
        if width is None:
            raise DataError(
                f"column {column.name!r} holds arrays of different lengths, or nulls, in its first rows. A tensor "
                "needs arrays of one length: pad or cut them."
            )
    return Columns(tuple(found), tuple(wanted), weighing, marking, rows, tuple(w for w in widths if w is not None))


def _first_rows(frame: DataFrame, count: int) -> pyarrow.RecordBatch:
    limited = frame.limit(count)
    if hasattr(limited, "toArrow"):
        table = limited.toArrow()
    else:  # Spark 3.5
        table = pyarrow.Table.from_pandas(limited.toPandas(), preserve_index=False)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pyarrow.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0]
