"""Horovod's constants for programs on Spark."""

from __future__ import annotations

from spark_estimator.compat import spark_constants


def test_constants() -> None:
    assert spark_constants.ONE_GB == 1024**3
    assert (spark_constants.ARRAY, spark_constants.NOCHANGE) == ("array", "nochange")
