"""Writes Delta tables with Spark's Delta, and compares rows that ranks read from their files with Spark's.

A program for an environment with a Spark for which there is a jar of Delta: `test_delta_spark.py` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_estimator.data.scan import files_of
from spark_estimator.errors import DataError


def write_tables(spark: SparkSession, folder: Path) -> dict[str, str]:
    """Write a table of each kind, and return their paths by kind."""
    paths = {name: f"{folder}/{name}" for name in ("vectors", "name", "id", "widened", "v2", "both")}
    features = {
        "vectors": "'delta.enableDeletionVectors'='true'",
        "name": "'delta.columnMapping.mode'='name','delta.minReaderVersion'='2','delta.minWriterVersion'='5'",
        "id": "'delta.columnMapping.mode'='id','delta.minReaderVersion'='2','delta.minWriterVersion'='5'",
        "widened": "'delta.enableTypeWidening'='true','delta.enableDeletionVectors'='false'",
        "v2": "'delta.checkpointPolicy'='v2','delta.checkpointInterval'='2'",
        "both": "'delta.enableTypeWidening'='true','delta.enableDeletionVectors'='true'",
    }
    for name, path in paths.items():
        table = f"delta.`{path}`"
        columns = "(n INT, x DOUBLE, k INT) USING delta PARTITIONED BY (k)"
        spark.sql(f"CREATE TABLE {table} {columns} TBLPROPERTIES({features[name]})")
        for start in (0, 100):
            rows = f"SELECT cast(id AS int), id / 2, cast(id % 2 AS int) FROM range({start}, {start + 100})"
            spark.sql(f"INSERT INTO {table} {rows}")
        if name in ("name", "id"):
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN x TO `y z`")
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS (x DOUBLE)")
            spark.sql(f"INSERT INTO {table} VALUES (500, 2.5, 7, 3.5)")
        if name in ("widened", "both"):
            spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE BIGINT")
            spark.sql(f"INSERT INTO {table} VALUES (5000000000, 2.5, 7)")
        if name in ("vectors", "both"):
            spark.sql(f"DELETE FROM {table} WHERE n % 10 = 3")
    return paths


def compare(spark: SparkSession, path: str, **options: Any) -> str:
    """Return the number of rows if those of three ranks are Spark's; else what is wrong."""
    frame = spark.read.format("delta").options(**options).load(path)
    try:
        files = files_of(frame)
    except DataError as error:
        return str(error.args[0])
    read = [batch for rank in range(3) for batch in files.read_batches(frame.columns, rank, 3, 7)]
    rows = [tuple(row.values()) for batch in read for row in batch.to_pylist()]
    same = sorted(map(repr, rows)) == sorted(repr(tuple(row)) for row in frame.collect())
    return f"{files.rows} rows" if same and len(rows) == files.rows else "other rows than Spark's"


def main() -> None:
    kind, folder = sys.argv[1:]
    builder = SparkSession.builder
    spark = (builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")).getOrCreate()
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    paths = write_tables(spark, Path(folder))
    for name, path in paths.items():
        print(f"{name}: {compare(spark, path)}", flush=True)
    print(f"version 1: {compare(spark, paths['vectors'], versionAsOf='1')}")
    history = spark.sql(f"DESCRIBE HISTORY delta.`{paths['vectors']}`").where("version = 1")
    moment = history.selectExpr("cast(timestamp AS string)").collect()[0][0]
    print(f"moment: {compare(spark, paths['vectors'], timestampAsOf=moment)}")
    spark.stop()


if __name__ == "__main__":
    main()
