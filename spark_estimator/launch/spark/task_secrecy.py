"""Keeps the driver channel's token, which is part of a job's task, off the driver's disk and out of its logs.

If the user's function is large, PySpark writes the task into a file that stays until the session ends, and Spark copies
it to files of its executors; not over Spark Connect. At DEBUG py4j logs everything that it sends to Java, and Spark
Connect's client everything that it sends to its server. This package cannot keep the token out of whole requests that
this server itself logs; see SECURITY.md.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_estimator.launch.job.spec import JobSpec

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

# Spark's limit (spark.broadcast.UDFCompressionThreshold) is 1 MiB, for all of a task.
_MOST_BYTES = 512 << 10
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")


@contextlib.contextmanager
def large_payload_apart(spark: SparkSession, job: JobSpec) -> Iterator[tuple[JobSpec, Broadcast[bytes] | None]]:
    """Puts a large function into a separate file, which contains no secret, until the block ends.

    Yields:
        The job (without its payload, if that is separate), and the broadcast that holds the payload.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect") or len(job.payload) <= _MOST_BYTES:
        yield job, None
        return
    apart = spark.sparkContext.broadcast(job.payload)
    try:
        yield replace(job, payload=b""), apart
    finally:
        with contextlib.suppress(Exception):  # the session may have ended
            apart.destroy()


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Within the block nothing is logged of what this thread sends to Spark."""
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
