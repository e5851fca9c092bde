"""Counts the values of categories before a training: the most frequent ones of its rows are the vocabulary.

Equally frequent values are in their own order, so that ids do not depend on how the rows are partitioned. All columns
are counted together: by one query, which reads the rows once; of files by this process, which reads them once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import LONGEST_TEXT, CategoryEncoder, Uncounted, Vocabulary, is_text
from spark_estimator.data.columns import Readable, cast_columns
from spark_estimator.data.fields import is_list
from spark_estimator.data.nulls import policy_of
from spark_estimator.data.numbers import numbers_of, without_nulls
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.preparation import marks
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import Columns, collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Rows of files that are counted at a time.
_ROWS_TO_COUNT = 1 << 16


@dataclass(frozen=True)
class _Counted:
    """A column whose values are counted.

    Attributes:
        number: its place among these columns.
        column: of the training.
        encoder: has the number of ids.
    """

    number: int
    column: Readable
    encoder: Uncounted

    def vocabulary(self, values: Sequence[str | int]) -> Vocabulary:
        """Of its most frequent values.

        Raises:
            DataError: there is none, or one is a long text.
        """
        name = self.encoder.name
        if not values:
            raise DataError(
                f"column {name!r} has no categories: it holds null alone in the rows to train on. Remove it from "
                f"feature_cols, or list its values: categories={{{name!r}: [...]}}."
            )
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        if longest > LONGEST_TEXT:
            raise DataError(
                f"column {name!r} has a frequent value of more than {LONGEST_TEXT} characters, which is no category: "
                "split it into words (an array of strings), shorten it (functions.left), or use a hash: "
                f"categories={{{name!r}: {{'hash': {self.encoder.size}}}}}."
            )
        return Vocabulary(name, tuple(values))  # type: ignore[arg-type]  # all are of one type


def counted_in_frame(frame: DataFrame, columns: Columns) -> Columns:
    """The columns with the vocabularies of a DataFrame's rows.

    Rows for validation that a column marks do not count, nor rows that are dropped; if a function transforms the rows,
    all of them count, as they are before it.

    Raises:
        DataError: a column has no categories.
    """
    from pyspark.sql import Window, functions

    open_columns = _open(columns)
    entries = functions.concat(*map(_entries, open_columns))
    counted_columns = [counted.column.cast("int64").alias(f"v{counted.number}") for counted in open_columns]
    rows = training_rows(frame, columns, counted_columns).select(functions.explode(entries).alias("entry"))
    rows = rows.select("entry.*").where("text is not null or number is not null")
    order = Window.partitionBy("column").orderBy(functions.desc("count"), "text", "number")
    counts = rows.groupBy("column", "most", "text", "number").count()
    ranked = counts.withColumn("id", functions.row_number().over(order)).where("id <= most")
    # A longer text is an error, which needs no more of it.
    text = functions.substring("text", 1, LONGEST_TEXT + 1)
    value = functions.coalesce(text, functions.col("number").cast("string")).alias("value")
    batch = collected(ranked.select("column", "id", value))
    batch = batch.take(pyarrow.compute.sort_indices(batch, sort_keys=[("column", "ascending"), ("id", "ascending")]))
    values: list[list[Any]] = [[] for _ in open_columns]
    for number, entry in zip(batch["column"].to_pylist(), _texts(batch["value"]), strict=True):
        values[number].append(entry)
    return _with_vocabularies(
        columns,
        (
            counted.vocabulary(of_column if _holds_texts(counted.column) else list(map(int, of_column)))
            for counted, of_column in zip(open_columns, values, strict=True)
        ),
    )


def counted_in_files(files: DataFiles, columns: Columns) -> Columns:
    """The same for Parquet files, which this process reads; it keeps all values that differ in memory.

    Raises:
        DataError: a column has no categories.
    """
    open_columns = _open(columns)
    counters: list[Counter[Any]] = [Counter() for _ in open_columns]
    for batch in training_batches(files, columns, [counted.encoder.name for counted in open_columns]):
        for counted, counter in zip(open_columns, counters, strict=True):
            array = batch.column(counted.encoder.name)
            keys = counted.encoder.keys(array.flatten() if is_list(array.type) else array)
            for entry in pyarrow.compute.value_counts(keys.drop_null()).to_pylist():
                counter[entry["values"]] += entry["counts"]
    return _with_vocabularies(columns, map(_most_frequent, open_columns, counters))


def _open(columns: Columns) -> list[_Counted]:
    """The columns whose values are to be counted."""
    features = {column.name: column for column in columns.read}
    return [
        _Counted(number, replace(features[encoder.name], ids=encoder.size), encoder)
        for number, encoder in enumerate(columns.uncounted)
    ]


def _with_vocabularies(columns: Columns, vocabularies: Iterable[Vocabulary]) -> Columns:
    counted: dict[str, CategoryEncoder] = {vocabulary.name: vocabulary for vocabulary in vocabularies}
    return columns.with_encoders({**columns.encoders, **counted})


def _holds_texts(column: Readable) -> bool:
    return is_text(column.kind.removeprefix("array<"))


def _texts(array: pyarrow.Array) -> list[str]:
    """Texts of UTF-8; bytes that are not UTF-8 are replaced, and never equal a value."""
    return [value.decode("utf-8", "replace") for value in array.cast(pyarrow.binary()).to_pylist()]


def _dropped_by(columns: Columns) -> list[Readable]:
    """The columns in which a null drops the row before it is transformed."""
    if columns.preparation.transformation is not None:
        return []
    nulls = columns.preparation.nulls
    return [column for column in columns.fed if policy_of(nulls, column.name) == "drop" and not column.takes_nulls]


def training_rows(frame: DataFrame, columns: Columns, wanted: Sequence[Column]) -> DataFrame:
    """The rows to train on, with the columns that are wanted."""
    from pyspark.sql import functions

    others = _dropped_by(columns)
    marker = columns.marker if columns.preparation.transformation is None else None
    chosen = list(wanted)
    if marker is not None:
        chosen.append(marker.marks)
    rows = frame.select(*cast_columns(others, [column.dtype for column in others], "error"), *chosen)
    rows = rows.dropna(subset=[f"c{number}" for number in range(len(others))]) if others else rows
    return rows if marker is None else rows.where(~functions.coalesce("marker", functions.lit(False)))


def _entries(counted: _Counted) -> Column:
    """The values of a row's column: an array of structs of the column's number, its most values, and the value."""
    from pyspark.sql import functions

    def entry(value: Column) -> Column:
        missing = functions.lit(None)
        text, number = (value, missing) if _holds_texts(counted.column) else (missing, value)
        return functions.struct(
            functions.lit(counted.number).alias("column"),
            functions.lit(counted.encoder.size - 1).alias("most"),
            text.cast("string").alias("text"),
            number.cast("bigint").alias("number"),
        )

    column = functions.col(f"v{counted.number}")
    if not counted.column.is_array:
        return functions.array(entry(column))
    return functions.coalesce(functions.transform(column, entry), functions.array(entry(functions.lit(None))))


def training_batches(files: DataFiles, columns: Columns, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """The rows to train on, with the columns of these names."""
    others = [column.name for column in _dropped_by(columns)]
    marker = columns.marker if columns.preparation.transformation is None else None
    read = list(dict.fromkeys([*others, *names, *([marker.name] if marker else [])]))
    for batch in files.batches(read, 0, 1, _ROWS_TO_COUNT):
        arrays = {f"c{number}": numbers_of(batch.column(name)) for number, name in enumerate(others)}
        arrays.update({name: batch.column(name) for name in names})
        if marker is not None:
            arrays["marker"] = pyarrow.compute.fill_null(marks(batch.column(marker.name)), False)
        rows = pyarrow.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        rows = without_nulls(rows, ["drop"] * len(others), ["int64"] * len(others))
        yield rows if marker is None else rows.filter(pyarrow.compute.invert(rows.column("marker")))


def _most_frequent(counted: _Counted, counter: Counter[Any]) -> Vocabulary:
    items = heapq.nsmallest(counted.encoder.size - 1, counter.items(), key=lambda item: (-item[1], item[0]))
    values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value, _ in items]
    return counted.vocabulary(values)
