"""The backends of ``benchmarks/data/reader.py`` that start from a DataFrame: two Spark tasks represent two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from benchmarks.backends import Backend
from spark_estimator.data.columns import cast_columns, make_readable
from spark_estimator.data.fields import Field, make_matrix
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.rank.spool import Spool, SpoolFeed, write_spools
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.scan import find_just_files
from spark_estimator.data.spark_rows import feed_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASKS = 2


@dataclass(frozen=True)
class Task:
    """A Spark task: spools its share of the rows and reads the batches of an epoch. Spark pickles it.

    Attributes:
        batch: rows per batch.
        files: the files to read; None: the rows come from Spark.
        feed: takes the rows that come from Spark.
    """

    batch: int
    files: FileRows | None = None
    feed: SpoolFeed | None = None

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        if self.feed is not None:
            rows = self.feed.encoder.encode_batches(map(self.feed.name_columns, batches))
            spools = [write_spools(rows, self.feed.encoder)[0].to_spool()]
        else:
            assert self.files is not None
            numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
            spools = [self.files.read(number, _TASKS)[0] for number in numbers]
        yield pyarrow.RecordBatch.from_pydict({"total": [sum(map(self._epoch, spools))]})

    def _epoch(self, spool: Spool) -> float:
        rows = RankRows(([spool.matrices[0]],), numpy.arange(spool.rows), (spool.rows,))
        if not spool.rows:
            return 0.0
        return sum(float(batch.matrices[0][:, 0].sum()) for batch in rows.read_batches(self.batch, None, (1, 2)))


@dataclass(frozen=True)
class Tensors:
    """A Spark task: converts its rows to matrices and sums their first column. Spark pickles it."""

    field: Field

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        total = sum(float(make_matrix(batch, self.field)[:, 0].sum()) for batch in batches)
        yield pyarrow.RecordBatch.from_pydict({"total": [total]})


def first_epoch_backends(
    spark: Any, folder: Path, columns: Sequence[str], width: int, batch: int
) -> dict[str, list[Backend]]:
    """From a DataFrame to the end of the first epoch's batches: this package's reader, and writing Parquet first.

    Args:
        spark: the session.
        folder: the folder of the Parquet files.
        columns: their columns.
        width: numbers per row.
        batch: rows per batch.

    Returns:
        Two backends each for "bare files" (a plan that only reads files) and "another plan" (with a filter).
    """
    frame = spark.read.parquet(str(folder))
    rows = frame.count()
    names = tuple(f"c{number}" for number in range(len(columns)))
    column_width = width // len(columns)
    field = Field(tuple(columns), names, (column_width,) * len(columns), "float32", (width,))
    first = columns[0] if column_width == 1 else f"{columns[0]}[0]"
    other = frame.where(f"{first} + 1 > 0")
    written = folder.parent / f"written_{width}"

    def from_files(files: Any) -> float:
        task = Task(batch, FileRows(files, RowEncoder(tuple(columns), (field,))))
        return _mean(spark.range(0, _TASKS, 1, _TASKS).mapInArrow(task, "total double"), rows)

    def directly() -> float:
        return from_files(find_just_files(frame, [make_readable(frame.schema, name) for name in columns], _TASKS))

    def through_tasks() -> float:
        chosen = [make_readable(other.schema, name) for name in columns]
        encoder = RowEncoder(tuple(columns), (field,))
        selected, feed = feed_columns(encoder, chosen, ["float32"] * len(columns))
        rows_of_plan = other.select(*selected)
        spread = rows_of_plan.repartition(_TASKS, *rows_of_plan.columns)
        return _mean(spread.mapInArrow(Task(batch, feed=feed), "total double"), rows)

    def by_writing(source: DataFrame) -> float:
        shutil.rmtree(written, ignore_errors=True)
        source.select(*columns).write.parquet(str(written))
        return from_files(find_files(str(written)))

    return {
        "bare files": [
            Backend(f"files of {width}, ours", rows, directly),
            Backend(f"files of {width}, written first", rows, lambda: by_writing(frame)),
        ],
        "another plan": [
            Backend(f"plan of {width}, ours", rows, through_tasks),
            Backend(f"plan of {width}, written first", rows, lambda: by_writing(other)),
        ],
    }


def vector_backends(spark: Any, folder: Path, columns: Sequence[str]) -> list[Backend]:
    """A column of Spark ML vectors into matrices: this package's conversion, and an RDD on a twentieth of the rows."""
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions

    assembler = VectorAssembler(inputCols=list(columns), outputCol="v")
    frame = assembler.transform(spark.read.parquet(str(folder))).select("v").cache()
    few = frame.sample(False, 0.05, seed=3).cache()
    rows, few_rows = frame.count(), few.count()
    field = Field(("v",), ("c0",), (len(columns),), "float32", (len(columns),))

    def ours(source: DataFrame, count: int) -> float:
        cast = source.select(*cast_columns([make_readable(source.schema, "v")], ["float32"], "error"))
        return _mean(cast.mapInArrow(Tensors(field), "total double"), count)

    def by_row() -> float:
        lists = few.rdd.map(lambda row: (row.v.toArray().tolist(),)).toDF("c0 array<double>")
        cast = lists.select(functions.col("c0").cast("array<float>"))
        return _mean(cast.mapInArrow(Tensors(field), "total double"), few_rows)

    # The sample has another mean than all rows; the difference is measured with our conversion.
    offset = ours(frame, rows) - ours(few, few_rows)
    return [
        Backend("vectors, ours", rows, lambda: ours(frame, rows)),
        Backend("vectors, row by row", few_rows, lambda: by_row() + offset),
    ]


def _mean(totals: DataFrame, rows: int) -> float:
    return sum(float(row[0]) for row in totals.collect()) / rows
