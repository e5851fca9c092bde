"""The ways of ``benchmarks/reader.py`` that begin with a DataFrame: two Spark tasks stand for two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from spark_estimator.benchmarks.backends import Way
from spark_estimator.data.columns import packed, readable, selected
from spark_estimator.data.fields import Field, matrix_of
from spark_estimator.data.parquet import FileRows, files_at
from spark_estimator.data.preparation import Preparation
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.data.rank.spool import Spool, spooled
from spark_estimator.data.scan import just_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASKS = 2


@dataclass(frozen=True)
class Task:
    """What a task does with its share of the rows: it spools them and reads an epoch's batches. It travels by pickle.

    Attributes:
        field: all columns side by side.
        batch: rows of a batch.
        files: that are read; None: Spark brings the rows.
    """

    field: Field
    batch: int
    files: FileRows | None = None

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        if self.files is None:
            spools = [spooled(batches, (self.field,), None)[0].spool()]
        else:
            numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
            spools = [self.files.read((self.field,), number, _TASKS)[0] for number in numbers]
        yield pyarrow.RecordBatch.from_pydict({"total": [sum(map(self._epoch, spools))]})

    def _epoch(self, spool: Spool) -> float:
        rows = RankRows(([spool.matrices[0]],), numpy.arange(spool.rows), (spool.rows,))
        if not spool.rows:
            return 0.0
        return sum(float(batch.matrices[0][:, 0].sum()) for batch in rows.batches(self.batch, None, (1, 2)))


@dataclass(frozen=True)
class Tensors:
    """Makes matrices of a task's rows, and adds up their first column. It travels by pickle."""

    field: Field

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        total = sum(float(matrix_of(batch, self.field)[:, 0].sum()) for batch in batches)
        yield pyarrow.RecordBatch.from_pydict({"total": [total]})


def of_first_epochs(spark: Any, folder: Path, columns: Sequence[str], width: int, batch: int) -> dict[str, list[Way]]:
    """From a DataFrame to the end of the first epoch's batches: ours, and by writing Parquet first.

    Args:
        folder: of Parquet files.
        columns: that they hold, `width` numbers a row.

    Returns:
        For "bare files", and for "another plan", in which a row is read where a sum is not negative: two ways each.
    """
    frame = spark.read.parquet(str(folder))
    rows = frame.count()
    names = tuple(f"c{number}" for number in range(len(columns)))
    each = width // len(columns)
    field = Field(tuple(columns), names, (each,) * len(columns), "float32", (width,))
    first = columns[0] if each == 1 else f"{columns[0]}[0]"
    other = frame.where(f"{first} + 1 > 0")
    written = folder.parent / f"written_{width}"

    def from_files(files: Any) -> float:
        task = Task(field, batch, FileRows(files, Preparation(tuple(columns))))
        return _mean(spark.range(0, _TASKS, 1, _TASKS).mapInArrow(task, "total double"), rows)

    def directly() -> float:
        return from_files(just_files(frame, [readable(frame.schema, name) for name in columns], _TASKS))

    def through_tasks() -> float:
        chosen = [readable(other.schema, name) for name in columns]
        cast, (together,) = packed(selected(other, chosen, ["float32"] * len(columns), "error"), [field])
        spread = cast.repartition(_TASKS, *cast.columns)
        return _mean(spread.mapInArrow(Task(together, batch), "total double"), rows)

    def by_writing(source: DataFrame) -> float:
        shutil.rmtree(written, ignore_errors=True)
        source.select(*columns).write.parquet(str(written))
        return from_files(files_at(str(written)))

    return {
        "bare files": [
            Way(f"files of {width}, ours", rows, directly),
            Way(f"files of {width}, written first", rows, lambda: by_writing(frame)),
        ],
        "another plan": [
            Way(f"plan of {width}, ours", rows, through_tasks),
            Way(f"plan of {width}, written first", rows, lambda: by_writing(other)),
        ],
    }


def of_vectors(spark: Any, folder: Path, columns: Sequence[str]) -> list[Way]:
    """A column of Spark ML's vectors into matrices: ours, and row by row through an RDD, on a twentieth of the rows."""
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions

    assembler = VectorAssembler(inputCols=list(columns), outputCol="v")
    frame = assembler.transform(spark.read.parquet(str(folder))).select("v").cache()
    few = frame.sample(False, 0.05, seed=3).cache()
    rows, few_rows = frame.count(), few.count()
    field = Field(("v",), ("c0",), (len(columns),), "float32", (len(columns),))

    def ours(source: DataFrame, count: int) -> float:
        cast = selected(source, [readable(source.schema, "v")], ["float32"], "error")
        return _mean(cast.mapInArrow(Tensors(field), "total double"), count)

    def by_row() -> float:
        lists = few.rdd.map(lambda row: (row.v.toArray().tolist(),)).toDF("c0 array<double>")
        cast = lists.select(functions.col("c0").cast("array<float>"))
        return _mean(cast.mapInArrow(Tensors(field), "total double"), few_rows)

    # A few rows have another mean; by how much, ours says for both ways alike.
    offset = ours(frame, rows) - ours(few, few_rows)
    return [
        Way("vectors, ours", rows, lambda: ours(frame, rows)),
        Way("vectors, row by row", few_rows, lambda: by_row() + offset),
    ]


def _mean(totals: DataFrame, rows: int) -> float:
    return sum(float(row[0]) for row in totals.collect()) / rows
