"""Which DataFrames are read as files, and that none is read otherwise than Spark reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

pytest.importorskip("pyspark")

from spark_estimator.data.columns import make_readable
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.scan import ThroughSpark, files_of, find_just_files
from spark_estimator.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``plain``: 20 rows of n, y, k, s in two files, in a folder whose name Spark encodes; ``by``: partitioned by k."""
    folder = tmp_path_factory.mktemp("scan") / "a b%20c"
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "id AS n", "CAST(id / 2 AS float) AS y", "CAST(id % 2 AS int) AS k", "named_struct('n', id * 100) AS s"
    )
    frame.write.parquet(f"{folder}/plain")
    frame.write.partitionBy("k").parquet(f"{folder}/by")
    return folder


def from_files(frame: DataFrame, *names: str) -> list[tuple[float, ...]]:
    """The rows as two ranks read them."""
    columns = [make_readable(frame.schema, name) for name in names]
    files = find_just_files(frame, columns, 2)
    fields = tuple(Field((name,), (f"c{number}",), (1,), "float64") for number, name in enumerate(names))
    rows = FileRows(files, RowEncoder(names, fields))
    spools = [rows.read(rank, 2)[0] for rank in range(2)]
    assert abs(spools[0].rows - spools[1].rows) <= 1
    return [
        values
        for spool in spools
        for values in zip(*(matrix.ravel().tolist() for matrix in spool.matrices), strict=True)
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda spark, plain, by: spark.read.parquet(plain),
        lambda spark, plain, by: spark.read.format("parquet").load(plain).select("y", "n"),
        lambda spark, plain, by: spark.read.parquet(plain).drop("k").alias("other").select("other.y", "n"),
        lambda spark, plain, by: spark.read.schema("y float, n bigint").parquet(plain),
    ],
    ids=["bare", "chosen", "dropped", "its own schema"],
)
def test_files_give_just_what_spark_gives(
    spark: SparkSession, folder: Path, make: Callable[[SparkSession, str, str], DataFrame]
) -> None:
    frame = make(spark, f"{folder}/plain", f"{folder}/by")
    expected = sorted((float(row.n), float(row.y)) for row in frame.collect())
    assert sorted(from_files(frame, "n", "y")) == expected
    assert len(expected) == 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda read, by: read().filter("n > 3"), "Filter"),
        (lambda read, by: read().limit(5), "GlobalLimit"),
        (lambda read, by: read().union(read()), "Union"),
        (lambda read, by: read().distinct(), "Deduplicate"),
        (lambda read, by: read().sample(0.5, seed=1), "Sample"),
        (lambda read, by: read().dropna(), "Filter"),
        (lambda read, by: read().join(read().select("n"), "n"), "computed or renamed|Join"),
        (lambda read, by: read().withColumnRenamed("y", "z").withColumnRenamed("n", "y"), "is computed or renamed"),
        (lambda read, by: read().selectExpr("n", "y * 2 AS y"), "'y' is computed or renamed"),
        (lambda read, by: read().selectExpr("CAST(n AS int) AS n", "y"), "'n' is computed or renamed"),
        (lambda read, by: read().select("s.n", "y"), "'n' is computed or renamed"),
        (lambda read, by: read().select("N", "y"), "'N' is bigint there, and not there in"),
        (lambda read, by: read(2), "it reads a file twice"),
        (lambda read, by: by, "partitioned by a column"),
        (lambda read, by: read().sparkSession.read.parquet(unquote(by.inputFiles()[0])), "folders by the values"),
        (lambda read, by: read().sparkSession.range(3).selectExpr("id AS n", "id AS y"), "computed or renamed"),
        (lambda read, by: read().repartition(2), "Repartition"),
        (lambda read, by: read().selectExpr("n", "CAST(n AS decimal(9, 2)) AS y"), "which Spark converts"),
    ],
)  # fmt: skip
def test_what_is_more_than_files_goes_through_spark(
    spark: SparkSession, folder: Path, make: Callable[[Any, Any], DataFrame], words: str
) -> None:
    def read(times: int = 1) -> DataFrame:
        return spark.read.parquet(*[f"{folder}/plain"] * times)

    frame = make(read, spark.read.parquet(f"{folder}/by"))
    columns = [make_readable(frame.schema, name) for name in frame.schema.names if name not in ("s", "k")]
    with pytest.raises(ThroughSpark, match=words):
        find_just_files(frame, columns, 2)


def test_caches_views_other_types_and_files_that_are_gone(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    frame = spark.read.parquet(f"{folder}/plain")
    frame.createOrReplaceTempView("scan_test")
    with pytest.raises(ThroughSpark, match="its plan has a View"):
        find_just_files(spark.table("scan_test"), [make_readable(frame.schema, "n")], 2)
    with pytest.raises(ThroughSpark, match=r"'s\.n' is a field of a struct"):
        find_just_files(frame, [make_readable(frame.schema, "s.n")], 2)
    wider = spark.read.schema("n bigint, k bigint").parquet(f"{folder}/plain")
    with pytest.raises(ThroughSpark, match="'k' is bigint there, and int in"):
        find_just_files(wider, [make_readable(wider.schema, "k")], 2)
    cached = spark.read.parquet(f"{folder}/plain").select("n").cache()
    try:
        with pytest.raises(ThroughSpark, match=r"it reads a|its plan has a InMemoryRelation"):
            find_just_files(cached, [make_readable(cached.schema, "n")], 2)
    finally:
        cached.unpersist()
    frame.write.parquet(f"{tmp_path}/gone")
    gone = spark.read.parquet(f"{tmp_path}/gone")
    next(Path(tmp_path, "gone").glob("*.parquet")).unlink()
    with pytest.raises(
        ThroughSpark, match=r"executors cannot read its files: .*parquet cannot be read: FileNotFoundError"
    ):
        find_just_files(gone, [make_readable(gone.schema, "n")], 2)
    frame.write.json(f"{tmp_path}/json")
    other = spark.read.json(f"{tmp_path}/json")
    with pytest.raises(ThroughSpark, match="its format is JsonFileFormat"):
        find_just_files(other, [make_readable(other.schema, "n")], 2)


def test_files_that_spark_would_leave_out(spark: SparkSession, folder: Path) -> None:
    """By a setting of the session or an option of the read, which overrides the setting."""
    plain = f"{folder}/plain"

    def look(**options: str) -> None:
        frame = spark.read.options(**options).parquet(plain)
        find_just_files(frame, [make_readable(frame.schema, "n")], 2)

    for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
        with pytest.raises(ThroughSpark, match=f"{name} is on"):
            look(**{name: "true"})
        spark.conf.set(f"spark.sql.files.{name}", "true")
        try:
            with pytest.raises(ThroughSpark, match=f"{name} is on"):
                look()
            look(**{name.upper(): "false"})
        finally:
            spark.conf.unset(f"spark.sql.files.{name}")


def test_for_a_loader(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(f"{folder}/plain")
    assert files_of(frame, ["n", "y"]).rows == 20
    with pytest.raises(DataError, match=r"cannot be read from files: its plan has a Filter\. Write it, df\.write"):
        files_of(frame.filter("n > 3"), ["n"])
