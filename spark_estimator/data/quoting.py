"""How Spark's expressions name a column whose name has dots, blanks or backticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow

if TYPE_CHECKING:
    from pyspark.sql import Column


def quote(name: str) -> str:
    """Return the name of one column, or of one field, for ``functions.col`` and for schemas."""
    return f"`{name.replace('`', '``')}`"


def number_columns(columns: Iterable[Column]) -> list[Column]:
    """Return the columns as ``c0``, ``c1`` and so on, for ``mapInArrow``, which reads a name with dots as a path.

    See `rename_columns`.
    """
    return [column.alias(f"c{number}") for number, column in enumerate(columns)]


def rename_columns(batch: pyarrow.RecordBatch, names: Sequence[str]) -> pyarrow.RecordBatch:
    """Return the same columns under other names; all else of its schema stays."""
    fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
    return pyarrow.RecordBatch.from_arrays(batch.columns, schema=pyarrow.schema(fields))
