"""Keeps the driver channel's token, which is part of a job's task, off the driver's disk and out of its logs.

If a task is large, PySpark writes it into a file that stays until the session ends, and Spark copies it to files of its
executors; not over Spark Connect. So what may be large of a job, and has no secret of it, is kept in parcels: they
become files of their own before the task becomes one, and what remains of the task is refused if it is large. At DEBUG
py4j logs everything that it sends to Java, and Spark Connect's client everything that it sends to its server. This
package cannot keep the token out of whole requests that this server itself logs; see SECURITY.md.
"""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.pickling import dump_value
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark.row_writer import Feed

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

_LIMIT = "spark.broadcast.UDFCompressionThreshold"
_DEFAULT_LIMIT = 1 << 20
# Of a file that Spark distributes: the driver's JVM has each in memory for a moment, and then on its disk.
_PART_BYTES = 32 << 20
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")


@dataclass(frozen=True)
class Parcel:
    """Content of a task that may be large: in the task, or in files that Spark distributes."""

    content: bytes | tuple[Broadcast[bytes], ...] = b""

    def read(self) -> bytes:
        """Return the content."""
        if isinstance(self.content, bytes):
            return self.content
        whole = io.BytesIO()
        for part in self.content:
            whole.write(part.value)
            vars(part).pop("_value", None)  # a copy that PySpark would keep
        return whole.getvalue()


@dataclass(frozen=True)
class Parcels:
    """What a job's task has beside its secrets. `payload`: as of `JobSpec`; `feed`: pickled; empty: there is none."""

    payload: Parcel
    feed: Parcel = Parcel()

    def load_feed(self) -> Feed | None:
        """Unpickle what takes the task's rows; None: there are none."""
        # It came from Spark with the task, as the code that calls this did.
        pickled = self.feed.read()
        feed: Feed | None = pickle.loads(pickled) if pickled else None  # noqa: S301
        return feed


@contextlib.contextmanager
def pack_parcels(spark: SparkSession, job: JobSpec, feed: Feed | None = None) -> Iterator[tuple[JobSpec, Parcels]]:
    """Yield the job without its payload, which may be large, and that apart.

    Raises PicklingError: the feed can't be pickled; PreflightError: the rest is so large that Spark would use a file.
    """
    rows = b"" if feed is None else dump_value("the rows", feed, for_tasks=True)
    rest, contents = replace(job, payload=b""), (job.payload, rows)
    limit = _find_size_limit(spark)
    small = len(pickle.dumps(rest))
    if limit is not None and small > limit:
        raise PreflightError(
            f"{job.function} can't be sent to Spark: its environment variables, command and settings take {small} "
            f"bytes. Of more than {limit} bytes Spark would write the task, which has a secret of the job in it, into "
            f"files. Pass fewer or shorter variables (env=), or raise {_LIMIT}."
        )
    apart = limit is not None and small + sum(map(len, contents)) > limit
    parts = ((content[n : n + _PART_BYTES] for n in range(0, len(content), _PART_BYTES)) for content in contents)
    parcels = [Parcel(content) for content in contents]
    if apart:
        parcels = [Parcel(tuple(map(spark.sparkContext.broadcast, each))) for each in parts]
    try:
        yield rest, Parcels(*parcels)
    finally:
        for file in (file for parcel in parcels if isinstance(parcel.content, tuple) for file in parcel.content):
            with contextlib.suppress(Exception):  # the session may have ended
                file.destroy()


def _find_size_limit(spark: SparkSession) -> int | None:
    """Return how large a task may be, with room for what PySpark adds; None: any size is sent without a file."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    limit = _DEFAULT_LIMIT
    with contextlib.suppress(Exception):  # a session that forbids Java
        context: Any = spark.sparkContext
        limit = int(context._jvm.PythonUtils.getBroadcastThreshold(context._jsc))
    return limit // 2


@contextlib.contextmanager
def suppress_logs() -> Iterator[None]:
    """Log nothing, within the block, of what this thread sends to Spark."""
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
