"""Timestamps and dates as Spark stores them: INT96, and the Julian calendar of LEGACY files."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from spark_estimator.data.legacy_calendar import check_calendar, find_legacy_columns
from spark_estimator.data.numbers import to_numbers
from spark_estimator.data.parquet import find_files
from spark_estimator.data.petastorm import make_batch_reader
from spark_estimator.errors import DataError
from spark_estimator.store import Store

TIMES = ["0001-01-01 00:00:00", "1600-02-29 12:00:00.000001", "2026-11-29 08:00:00", "9999-12-31 23:59:59.999999"]
EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
SECONDS = [
    (datetime.datetime.fromisoformat(f"{time}+00:00") - EPOCH) // datetime.timedelta(microseconds=1) / 1e6
    for time in TIMES
]


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


def write(spark: SparkSession, folder: Path, mode: str, kind: str, times: list[str]) -> str:
    """A folder with the columns `t`, of timestamps, and `a`, of arrays of dates."""
    values = {
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.parquet.int96RebaseModeInWrite": mode,
        "spark.sql.parquet.datetimeRebaseModeInWrite": mode,
        "spark.sql.session.timeZone": "UTC",
    }
    with settings(spark, values):
        df = spark.createDataFrame([(time,) for time in times], "text string")
        df = (
            df.selectExpr("cast(text as timestamp) t", "array(cast(text as date)) a")
            .coalesce(1)
            .sortWithinPartitions("t")
        )
        df.write.parquet(str(folder / "rows"))
    return str(folder / "rows")


def read(path: str, column: str) -> pyarrow.Array:
    return pyarrow.concat_arrays([batch.column(column) for batch in find_files(path).read_batches([column], 0, 1, 10)])


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_timestamps_of_all_years_have_the_right_seconds(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    path = write(spark, tmp_path, "CORRECTED", kind, TIMES)
    assert to_numbers(read(path, "t")).to_pylist() == SECONDS
    with make_batch_reader(f"file://{path}", schema_fields=["t"], shuffle_row_groups=False) as reader:
        column: Any = numpy.concatenate([batch.t for batch in reader])
    assert (column.astype("datetime64[us]").astype(numpy.int64) / 1e6).tolist() == SECONDS
    table = Store.create(str(tmp_path)).get_parquet_dataset(path).read(columns=["t"])
    assert to_numbers(table.column("t").combine_chunks()).to_pylist() == SECONDS


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize(("column", "since"), [("t", "1900"), ("a", "15 October 1582")])
def test_old_days_of_the_julian_calendar_are_refused(
    spark: SparkSession, tmp_path: Path, kind: str, column: str, since: str
) -> None:
    path = write(spark, tmp_path, "LEGACY", kind, ["1500-01-01 00:00:00", "2026-11-29 08:00:00"])
    with pytest.raises(DataError, match=f"column '{column}' has values before {since} that Spark wrote in the Julian"):
        read(path, column)
    with pytest.raises(DataError, match=f"column '{column}' has values before {since}"):
        with make_batch_reader(f"file://{path}", schema_fields=[column]) as reader:
            list(reader)


def test_new_days_are_the_same_in_both_calendars(spark: SparkSession, tmp_path: Path) -> None:
    path = write(spark, tmp_path, "LEGACY", "INT96", TIMES[2:])
    assert to_numbers(read(path, "t")).to_pylist() == SECONDS[2:]


def test_the_footer_says_which_calendar_spark_used(tmp_path: Path) -> None:
    table = pyarrow.table({"t": pyarrow.array([datetime.datetime(1500, 1, 1)], pyarrow.timestamp("us"))})

    def legacy(int96: bool, **texts: str) -> list[str]:
        keys = {f"org.apache.spark.{key}": text for key, text in texts.items()}
        path = tmp_path / "x.parquet"
        pyarrow.parquet.write_table(table.replace_schema_metadata(keys), path, use_deprecated_int96_timestamps=int96)
        return find_legacy_columns(pyarrow.parquet.read_metadata(path), ["t"])

    for int96, first_corrected in ((True, "3.1.0"), (False, "3.0.0")):
        assert legacy(int96, version="2.4.8") == ["t"]
        assert legacy(int96, version=first_corrected) == legacy(int96) == []
    assert legacy(False, version="3.5.1", legacyDateTime="") == legacy(True, version="3.5.1", legacyINT96="") == ["t"]
    assert legacy(False, version="3.5.1", legacyINT96="") == legacy(True, version="3.5.1", legacyDateTime="") == []
    check_calendar("x", ["t"], table.slice(0, 0))


def test_columns_whose_names_have_dots(tmp_path: Path) -> None:
    days = pyarrow.array([datetime.date(2020, 1, 1)])
    times = pyarrow.array([datetime.datetime(1500, 1, 1)], pyarrow.timestamp("us"))
    lists = pyarrow.ListArray.from_arrays([0, 1], times)
    table = pyarrow.table({"t.s": times, "t": days, "l.s": lists, "l": pyarrow.ListArray.from_arrays([0, 1], days)})
    texts = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyINT96": ""}
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(texts), path, use_deprecated_int96_timestamps=True)
    legacy = find_legacy_columns(pyarrow.parquet.read_metadata(path), table.schema.names)
    assert legacy == ["t.s", "l.s"]
