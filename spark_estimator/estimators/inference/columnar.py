"""Has Spark give Python functions rows, where it would give them columns that it cannot convert."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def prepare_for_python(frame: DataFrame) -> DataFrame:
    """Return the same rows, for a Python function.

    Spark 4.3 gives a function the columns of a Parquet file as they are
    (``spark.sql.execution.arrow.pythonUDF.columnarInput.enabled``), also those that it does not take, and fails
    with UNSUPPORTED_DATATYPE where one has a user-defined type, such as a vector of Spark ML. It makes rows for a
    filter. The one here keeps all rows; the optimizer leaves it where it is, as its value is that of the task.
    """
    from pyspark.sql import functions

    return frame.filter(functions.spark_partition_id() >= 0) if '"udt"' in frame.schema.json() else frame
