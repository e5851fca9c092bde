"""Refuses old dates and timestamps that Spark has written in the Julian calendar, which Arrow reads as other days.

Spark 2, and later versions with the setting LEGACY, write days before 15 October 1582 as the Julian calendar counts
them. Timestamps also differ before 1900, where time zones had local mean time. Such files say so in their footer, by
the rules of Spark's `DataSourceUtils.datetimeRebaseSpec` and `int96RebaseSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from spark_estimator.data.fields import is_list
from spark_estimator.errors import DataError

_VERSION = b"org.apache.spark.version"
_LEGACY_DATES = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
# Days and microseconds since 1970 of 15 October 1582, and of 1900.
_GREGORIAN_DAY = -141_427
_ZONES_MICROSECOND = -2_208_988_800_000_000


def find_legacy_columns(metadata: pyarrow.parquet.FileMetaData, columns: Sequence[str]) -> list[str]:
    """Return those columns of a file, by name, whose dates or timestamps are in the Julian calendar.

    Args:
        columns: top-level ones.
    """
    texts = metadata.metadata or {}
    if _VERSION not in texts:  # another program's, or of a Spark that no supported one follows
        return []
    version = tuple(map(int, re.findall(rb"\d+", texts[_VERSION])[:2]))
    dates = version < (3, 0) or _LEGACY_DATES in texts
    int96 = version < (3, 1) or _LEGACY_INT96 in texts
    if not dates and not int96:
        return []
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    paths = [f"{leaf.path}." for leaf in leaves if leaf.physical_type == "INT96"]
    names = metadata.schema.to_arrow_schema().names if paths else []  # a column's name may have dots, too
    of_int96 = {max((name for name in names if path.startswith(f"{name}.")), key=len) for path in paths}
    return [name for name in columns if (int96 if name in of_int96 else dates)]


def check_calendar(path: str, columns: Sequence[str], rows: pyarrow.RecordBatch | pyarrow.Table) -> None:
    """Check that no value of these columns means another day in the Gregorian calendar.

    Args:
        path: the file's, for the error.
        columns: what `find_legacy_columns` returns.
        rows: that were read.

    Raises:
        DataError: there is such a value.
    """
    for name in columns:
        column = rows.column(name)
        while is_list(column.type):
            column = pyarrow.compute.list_flatten(column)
        if pyarrow.types.is_timestamp(column.type):
            first = pyarrow.compute.min(column.cast(pyarrow.timestamp("us")).cast(pyarrow.int64())).as_py()
            limit, since = _ZONES_MICROSECOND, "1900"
        elif pyarrow.types.is_date32(column.type):
            first = pyarrow.compute.min(column.cast(pyarrow.int32())).as_py()
            limit, since = _GREGORIAN_DAY, "15 October 1582"
        else:
            continue
        if first is not None and first < limit:
            raise DataError(
                f"{path}: column {name!r} has values before {since} that Spark wrote in the Julian calendar "
                "(spark.sql.parquet.datetimeRebaseModeInWrite or int96RebaseModeInWrite was LEGACY), so that other "
                "programs read other days. Read it with Spark and pass the DataFrame, or let Spark write it again "
                "with CORRECTED."
            )
