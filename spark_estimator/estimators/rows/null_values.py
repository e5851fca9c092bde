"""Finds the numbers that replace nulls before a training: means or medians of the rows to train on.

All columns are measured together: by one query, which reads the rows once; of files by this process, which reads them
once. NaN and infinity do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy
import pyarrow

from spark_estimator.data.columns import Readable
from spark_estimator.data.fields import Array
from spark_estimator.data.nulls import set_numbers
from spark_estimator.data.numbers import to_numbers
from spark_estimator.data.parquet import DataFiles
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import Columns
from spark_estimator.estimators.rows.vocabularies import read_training_batches, select_training_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def measure_frame(frame: DataFrame, columns: Columns) -> Columns:
    """Return the columns with the statistics of a DataFrame's rows.

    Rows for validation that a column marks do not count, nor rows that are dropped.

    Raises:
        DataError: a column has no number.
    """
    from pyspark.sql import functions

    features = _find_features(columns)
    selected = [feature.cast("float64").alias(f"v{number}") for number, feature in enumerate(features)]
    rows = select_training_rows(frame, columns, selected)
    measured = []
    for number, feature in enumerate(features):
        # NaN is larger than infinity to Spark.
        value = functions.when(functions.abs(f"v{number}") < math.inf, functions.col(f"v{number}"))
        measure = functions.avg if columns.statistics[feature.name] == "mean" else functions.median
        measured.append(measure(value).alias(f"v{number}"))
    row = rows.agg(*measured).collect()[0]
    return _set_values(columns, {feature.name: row[number] for number, feature in enumerate(features)})


def measure_files(files: DataFiles, columns: Columns) -> Columns:
    """Return what `measure_frame` does for Parquet files, which this process reads; it keeps the columns with a
    median in memory.

    Raises:
        DataError: a column has no number.
    """
    sums = {name: [0.0, 0] for name, statistic in columns.statistics.items() if statistic == "mean"}
    collected: dict[str, list[Array]] = {name: [] for name in columns.statistics if name not in sums}
    for batch in read_training_batches(files, columns, list(columns.statistics)):
        for name in columns.statistics:
            values = numpy.asarray(to_numbers(batch.column(name)).drop_null().cast(pyarrow.float64(), safe=False))
            values = values[numpy.isfinite(values)]
            if name in collected:
                collected[name].append(values)
                continue
            sums[name][0] += float(values.sum())
            sums[name][1] += len(values)
    means = {name: total / count if count else None for name, (total, count) in sums.items()}
    medians = {
        name: _compute_median(numpy.concatenate([numpy.empty(0), *values])) for name, values in collected.items()
    }
    return _set_values(columns, means | medians)


def _compute_median(values: Array) -> float | None:
    return float(numpy.median(values)) if len(values) else None


def _find_features(columns: Columns) -> list[Readable]:
    return [feature for feature in columns.features if feature.name in columns.statistics]


def _set_values(columns: Columns, values: Mapping[str, float | None]) -> Columns:
    """Return the columns with the numbers that replace nulls; a whole number in a column of whole numbers."""
    numbers: dict[str, float] = {}
    for feature in _find_features(columns):
        value = values[feature.name]
        statistic = columns.statistics[feature.name]
        if value is None:
            raise DataError(
                f"column {feature.name!r} has no {statistic}: it holds no finite number in the rows to train on. "
                "Remove it from feature_cols."
            )
        if not math.isfinite(value):
            raise DataError(
                f"column {feature.name!r} has no {statistic}: the sum of its values is {value}. Scale them, or set "
                f"nulls={{{feature.name!r}: <number>}}."
            )
        # At most the largest double that an int64 holds.
        numbers[feature.name] = float(min(round(value), (1 << 63) - 1024)) if feature.dtype == "int64" else float(value)
    encoder = replace(columns.encoder, nulls=set_numbers(columns.encoder.nulls, numbers))
    return replace(columns, encoder=encoder, null_values=numbers)
