"""The session of a driver program that fits estimators: on a Connect server, or with executors of one core each."""

from __future__ import annotations

from pyspark.sql import SparkSession


def session(where: str) -> SparkSession:
    """A session at a master or a remote address."""
    if where.startswith("sc://"):
        return SparkSession.builder.remote(where).getOrCreate()
    builder = SparkSession.builder.master(where).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.cores", "1")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
