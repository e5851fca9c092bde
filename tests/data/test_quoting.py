"""Names of columns in Spark's expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_estimator.data.quoting import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", ["x", "a.b", "a b", "a`b", "`", "名"])
def test_spark_reads_any_name(name: str, spark: SparkSession) -> None:
    frame = spark.range(2).toDF(name)
    assert frame.select(quote(name)).columns == [name]
    assert spark.createDataFrame([], f"{quote(name)} int").columns == [name]
