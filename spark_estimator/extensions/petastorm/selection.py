"""Which rows of a data set a reader's `predicate` and `filters` select: counted before the rows are shared out.

Each shard looks at the columns of the predicate and the filters in all files, so that all shards get equal shares of
the selected rows. What looks at partition columns alone reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.fields import Array
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.dataset import DatasetFiles, Piece
from spark_estimator.extensions.petastorm.predicates import PredicateBase, find_included


def select_rows(
    files: DatasetFiles, predicate: PredicateBase | None, filters: Sequence[Any] | None, by_row: bool
) -> DatasetFiles:
    """Return the files with only the rows that the predicate and the filters leave.

    Args:
        filters: PyArrow's: a list of (column, operator, value), which all must be true, or a list of such lists,
            of which one must be true.
        by_row: the predicate is called for single rows.

    Raises:
        DataError: a column is missing, or the predicate failed.
        ValueError: neither is what it should be.
    """
    if filters:
        files = _narrow(files, *_parse_filters(files, filters))
    if predicate is None:
        return files
    if not isinstance(predicate, PredicateBase):
        raise ValueError(f"predicate must be an object of petastorm.predicates.PredicateBase; got {predicate!r}.")
    names = sorted(predicate.get_fields())
    if not names:
        raise ValueError("the predicate's get_fields() names no column.")
    return _narrow(files, names, lambda table: find_included(predicate, table.to_pandas(), by_row))


def _narrow(files: DatasetFiles, names: Sequence[str], make_mask: Callable[[pyarrow.Table], Array]) -> DatasetFiles:
    """Return the files with only those of their selected rows for which the mask is true."""
    kinds = files.kinds
    unknown = next((name for name in names if name not in kinds), None)
    if unknown is not None:
        raise DataError(
            f"the predicate or the filters name {unknown!r}, which is no column of {', '.join(map(repr, kinds))}."
            + did_you_mean(unknown, kinds)
        )
    files.check(names)
    of_folders = set(names) <= set(files.partitions)
    footers: dict[int, Any] = {}

    def narrow_group(file: int, group: int, rows: int) -> Array | None:
        before = files.selected[file][group] if files.selected else None
        if not rows:
            return before
        # One row shows the values of a folder.
        mask = make_mask(files.read(Piece(file, group, 0, 1 if of_folders else rows), names, footers))
        if mask.all():
            return before
        numbers = numpy.flatnonzero(mask)
        return numbers if before is None else before[numbers]

    return replace(
        files,
        selected=tuple(
            tuple(narrow_group(file, group, rows) for group, rows in enumerate(groups))
            for file, groups in enumerate(files.count_group_rows())
        ),
    )


def _parse_filters(files: DatasetFiles, filters: Sequence[Any]) -> tuple[list[str], Callable[[pyarrow.Table], Array]]:
    """Return the columns that the filters name, and a function that returns which rows of a table they leave."""
    try:
        groups = [filters] if isinstance(filters[0][0], str) else filters
        parts = [
            [(name, sign, _convert_for_partition(files, name, value)) for name, sign, value in group]
            for group in groups
        ]
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(
            f"filters must be a list of (column, operator, value), or a list of such lists; got {filters!r}."
        ) from error
    try:
        expression = pyarrow.parquet.filters_to_expression(parts)
    except (TypeError, ValueError, pyarrow.ArrowInvalid) as error:
        raise ValueError(f"filters: {error}; got {filters!r}.") from error

    def make_mask(table: pyarrow.Table) -> Array:
        try:
            column = pyarrow.dataset.dataset(table).to_table(columns={"mask": expression}).column(0)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise DataError(f"filters {filters!r}: {error}") from error
        mask: Array = column.fill_null(False).to_numpy()
        return mask

    return sorted({name for group in parts for name, _, _ in group}), make_mask


def _convert_for_partition(files: DatasetFiles, name: str, value: Any) -> Any:
    """Return a text for a partition of whole numbers as a number, as PyArrow's older filters compared them."""
    if name not in files.partitions or files.kinds[name] != "bigint":
        return value
    if isinstance(value, (set, list, tuple)):
        return [_convert_for_partition(files, name, item) for item in value]
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]+", value) else value
