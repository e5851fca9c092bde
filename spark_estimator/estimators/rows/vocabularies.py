"""Counts the values of categories before a training: the most frequent ones of its rows are the vocabulary.

Equally frequent values are in their own order, so that ids do not depend on how the rows are partitioned. All columns
are counted together: by one query, which reads the rows once; of files by this process, which reads them once. Columns
that share a vocabulary are counted as one.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute

from spark_estimator.data.categories import LONGEST_TEXT, CategoryEncoder, Shared, Uncounted, Vocabulary, is_text
from spark_estimator.data.columns import Readable, cast_columns
from spark_estimator.data.fields import is_list
from spark_estimator.data.nulls import get_policy
from spark_estimator.data.numbers import apply_null_rules, to_numbers
from spark_estimator.data.parquet import DataFiles
from spark_estimator.data.row_encoder import read_marks
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import Columns
from spark_estimator.estimators.rows.sources import collect_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Rows of files that are counted at a time.
_ROWS_TO_COUNT = 1 << 16
# Two columns with as many values in common are hardly alike by chance. Fewer texts may be answers or grades.
_COMMON_TEXTS, _COMMON_NUMBERS = 5, 100


@dataclass(frozen=True)
class _Counted:
    """A vocabulary whose values are counted.

    Attributes:
        number: its place among these vocabularies.
        columns: of the training, that share it.
        encoder: has the number of ids.
    """

    number: int
    columns: tuple[Readable, ...]
    encoder: Uncounted

    @property
    def holds_texts(self) -> bool:
        return is_text(self.columns[0].kind.removeprefix("array<"))

    def make_vocabulary(self, values: Sequence[str | int]) -> Vocabulary:
        """Return a vocabulary of its most frequent values.

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


def count_frame(frame: DataFrame, columns: Columns) -> Columns:
    """Return the columns with the vocabularies of a DataFrame's rows.

    Rows for validation that a column marks do not count, nor rows that are dropped; if a function transforms the
    rows, all of them count, as they are before it.

    Raises:
        DataError: a column has no categories.
    """
    from pyspark.sql import Window, functions

    open_columns = _find_open(columns)
    values_of = {
        f"v{counted.number}_{index}": (counted, column)
        for counted in open_columns
        for index, column in enumerate(counted.columns)
    }
    entries = functions.concat(*(_make_entries(name, *of_column) for name, of_column in values_of.items()))
    counted_columns = [column.cast("int64").alias(name) for name, (_, column) in values_of.items()]
    rows = select_training_rows(frame, columns, counted_columns).select(functions.explode(entries).alias("entry"))
    rows = rows.select("entry.*").where("text is not null or number is not null")
    order = Window.partitionBy("column").orderBy(functions.desc("count"), "text", "number")
    counts = rows.groupBy("column", "most", "text", "number").count()
    ranked = counts.withColumn("id", functions.row_number().over(order)).where("id <= most")
    # A longer text is an error, which needs no more of it.
    text = functions.substring("text", 1, LONGEST_TEXT + 1)
    value = functions.coalesce(text, functions.col("number").cast("string")).alias("value")
    batch = collect_batch(ranked.select("column", "id", value))
    batch = batch.take(pyarrow.compute.sort_indices(batch, sort_keys=[("column", "ascending"), ("id", "ascending")]))
    values: list[list[Any]] = [[] for _ in open_columns]
    for number, entry in zip(batch["column"].to_pylist(), _to_texts(batch["value"]), strict=True):
        values[number].append(entry)
    return _set_vocabularies(
        columns,
        (
            counted.make_vocabulary(of_column if counted.holds_texts else list(map(int, of_column)))
            for counted, of_column in zip(open_columns, values, strict=True)
        ),
    )


def count_files(files: DataFiles, columns: Columns) -> Columns:
    """Return what `count_frame` does for Parquet files, which this process reads; it keeps all values that differ in
    memory.

    Raises:
        DataError: a column has no categories.
    """
    open_columns = _find_open(columns)
    counters: list[Counter[Any]] = [Counter() for _ in open_columns]
    for batch in read_training_batches(
        files, columns, [column.name for each in open_columns for column in each.columns]
    ):
        for counted, counter in zip(open_columns, counters, strict=True):
            for column in counted.columns:
                array = batch.column(column.name)
                keys = counted.encoder.find_keys(array.flatten() if is_list(array.type) else array)
                for entry in pyarrow.compute.value_counts(keys.drop_null()).to_pylist():
                    counter[entry["values"]] += entry["counts"]
    return _set_vocabularies(columns, map(_select_most_frequent, open_columns, counters))


def _find_open(columns: Columns) -> list[_Counted]:
    """Return the vocabularies whose values are to be counted."""
    features = {column.name: column for column in columns.read}
    sharing: dict[str, list[str]] = {}
    for name, encoder in columns.encoder.categories.items():
        sharing.setdefault(encoder.of.name if isinstance(encoder, Shared) else name, []).append(name)
    return [
        _Counted(number, tuple(replace(features[name], ids=encoder.size) for name in sharing[encoder.name]), encoder)
        for number, encoder in enumerate(columns.uncounted)
    ]


def _set_vocabularies(columns: Columns, vocabularies: Iterable[Vocabulary]) -> Columns:
    counted: dict[str, CategoryEncoder] = {vocabulary.name: vocabulary for vocabulary in vocabularies}
    encoders = {
        name: replace(encoder, of=counted.get(encoder.of.name, encoder.of))
        if isinstance(encoder, Shared)
        else counted.get(name, encoder)
        for name, encoder in columns.encoder.categories.items()
    }
    _warn_of_overlaps([encoder for encoder in encoders.values() if isinstance(encoder, Vocabulary)], columns)
    return columns.with_categories(encoders)


def _warn_of_overlaps(vocabularies: Sequence[Vocabulary], columns: Columns) -> None:
    """Warn of columns that seem to mean the same values and have other ids for them: an embedding can't be shared."""
    features = {column.name: column for column in columns.read}
    for first, second in itertools.combinations(vocabularies, 2):
        if first.holds_texts != second.holds_texts:
            continue
        smaller, larger = sorted((first, second), key=lambda each: each.size)
        common = smaller.find_common_ids(larger)
        is_array = features[first.name].is_array or features[second.name].is_array
        # Months, hours and counts have numbers in common, too.
        least = _COMMON_TEXTS if first.holds_texts or is_array else _COMMON_NUMBERS
        if len(common) >= max(least, len(smaller.values) / 2) and any(here != other_id for here, other_id in common):
            warnings.warn(
                f"the columns {first.name!r} and {second.name!r} have {len(common)} values in common, and each has ids "
                "of its own for them. If these mean the same, and share an embedding, set "
                f"categories={{{smaller.name!r}: {larger.name!r}, ...}}.",
                stacklevel=2,
            )


def _to_texts(array: pyarrow.Array) -> list[str]:
    """Return texts of UTF-8; bytes that are not UTF-8 are replaced, and never equal a value."""
    return [value.decode("utf-8", "replace") for value in array.cast(pyarrow.binary()).to_pylist()]


def _find_dropping(columns: Columns) -> list[Readable]:
    """Return the columns in which a null drops the row before it is transformed."""
    if columns.encoder.transformation is not None:
        return []
    nulls = columns.encoder.nulls
    return [column for column in columns.fed if get_policy(nulls, column.name) == "drop" and not column.takes_nulls]


def select_training_rows(frame: DataFrame, columns: Columns, selected: Sequence[Column]) -> DataFrame:
    """Return the rows to train on, with the columns that are wanted."""
    from pyspark.sql import functions

    others = _find_dropping(columns)
    marker = columns.marker if columns.encoder.transformation is None else None
    chosen = list(selected)
    if marker is not None:
        chosen.append(marker.marks)
    rows = frame.select(*cast_columns(others, [column.dtype for column in others], "error"), *chosen)
    rows = rows.dropna(subset=[f"c{number}" for number in range(len(others))]) if others else rows
    return rows if marker is None else rows.where(~functions.coalesce("marker", functions.lit(False)))


def _make_entries(name: str, counted: _Counted, column: Readable) -> Column:
    """Return the values of a row's column: an array of structs of its vocabulary's number and most values, and the
    value.

    Args:
        name: of the column in the rows.
    """
    from pyspark.sql import functions

    def make_entry(value: Column) -> Column:
        missing = functions.lit(None)
        text, number = (value, missing) if counted.holds_texts else (missing, value)
        return functions.struct(
            functions.lit(counted.number).alias("column"),
            functions.lit(counted.encoder.size - 1).alias("most"),
            text.cast("string").alias("text"),
            number.cast("bigint").alias("number"),
        )

    values = functions.col(name)
    if not column.is_array:
        return functions.array(make_entry(values))
    return functions.coalesce(functions.transform(values, make_entry), functions.array(make_entry(functions.lit(None))))


def read_training_batches(files: DataFiles, columns: Columns, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows to train on, with the columns of these names."""
    others = [column.name for column in _find_dropping(columns)]
    marker = columns.marker if columns.encoder.transformation is None else None
    read = list(dict.fromkeys([*others, *names, *([marker.name] if marker else [])]))
    for batch in files.read_batches(read, 0, 1, _ROWS_TO_COUNT):
        arrays = {f"c{number}": to_numbers(batch.column(name)) for number, name in enumerate(others)}
        arrays.update({name: batch.column(name) for name in names})
        if marker is not None:
            arrays["marker"] = pyarrow.compute.fill_null(read_marks(batch.column(marker.name)), False)
        rows = pyarrow.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        rows = apply_null_rules(rows, [("drop", "")] * len(others))
        yield rows if marker is None else rows.filter(pyarrow.compute.invert(rows.column("marker")))


def _select_most_frequent(counted: _Counted, counter: Counter[Any]) -> Vocabulary:
    items = heapq.nsmallest(counted.encoder.size - 1, counter.items(), key=lambda item: (-item[1], item[0]))
    values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value, _ in items]
    return counted.make_vocabulary(values)
