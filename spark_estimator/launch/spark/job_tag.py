"""The tag by which this package finds and cancels its Spark jobs, in classic Spark and over Spark Connect alike."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_DESCRIPTION = "spark.job.description"


def has_job_tags(context: SparkContext) -> bool:
    """Return whether jobs have tags; where they have none, on Spark 3.4, a `JobTag` is the job group."""
    return hasattr(context, "addJobTag")


class JobTag:
    """A tag, unique in the session, to be added in a thread of the job's own: Spark's properties change with it."""

    def __init__(self, spark: SparkSession, text: str) -> None:
        self.text = text
        self._spark = spark
        self._is_connect = type(spark).__module__.startswith("pyspark.sql.connect")

    def add(self, description: str = "") -> None:
        """Give the tag to the Spark jobs that the calling thread starts from now on.

        Args:
            description: for Spark's web page, and for other jobs that wait for the slots, if the user has not set
                one; '' for none. Spark Connect's server makes its own.
        """
        if self._is_connect:
            self._spark.addTag(self.text)
            return
        # A classic session's own tags do not cancel; the context's do. A job group would replace the notebook's.
        context = self._spark.sparkContext
        shown = context.getLocalProperty(_DESCRIPTION) or (f"spark_estimator: {description}" if description else None)
        if has_job_tags(context):
            context.addJobTag(self.text)
        else:
            context.setJobGroup(self.text, shown or "spark_estimator")
        if shown:
            context.setLocalProperty(_DESCRIPTION, shown)

    def cancel(self) -> None:
        """Cancel all jobs that have it."""
        with contextlib.suppress(Exception):  # the session may have ended
            if self._is_connect:
                self._spark.interruptTag(self.text)
            elif has_job_tags(self._spark.sparkContext):
                self._spark.sparkContext.cancelJobsWithTag(self.text)
            else:
                self._spark.sparkContext.cancelJobGroup(self.text)
